"""Count, ask and stream with Anthropic's SDK. Its base URL goes without /v1.

ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=none python examples/anthropic_messages.py
"""

from __future__ import annotations

import os
from typing import Any

from anthropic import Anthropic


def main() -> None:
    client = Anthropic(
        base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
        api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
    )
    model = os.environ.get("ANTHROPIC_MODEL") or client.models.list().data[0].id
    asked: dict[str, Any] = {
        "model": model,
        "system": "You are the friendly guide of a small museum of clocks, and answer in one short sentence.",
        "messages": [{"role": "user", "content": "Name the capital of France."}],
    }
    print("prompt tokens:", client.messages.count_tokens(**asked).input_tokens)
    greedy = {"temperature": 0}  # the SDK has no argument for it
    answer = client.messages.create(**asked, max_tokens=60, extra_body=greedy)
    print("answer:", "".join(block.text for block in answer.content if block.type == "text"))
    with client.messages.stream(**asked, max_tokens=60, extra_body=greedy) as stream:
        print("streamed:", "".join(stream.text_stream))
        usage = stream.get_final_message().usage
    print("prompt tokens from the cache:", usage.cache_read_input_tokens)


if __name__ == "__main__":
    main()
