"""The same through OpenAI's newer endpoint: an answer, and the events of a streamed one.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_responses.py
"""

from __future__ import annotations

import os
from typing import Any

from openai import OpenAI

INSTRUCTIONS = "You are the friendly guide of a small museum of clocks, and answer in one short sentence."


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
    asked: Any = {"model": model, "instructions": INSTRUCTIONS, "temperature": 0, "max_output_tokens": 60}
    answer = client.responses.create(**asked, input="Name the capital of France.")
    print(answer.output_text)
    for event in client.responses.create(**asked, input="Name the capital of Italy.", stream=True):
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type in ("response.completed", "response.incomplete"):
            usage = event.response.usage
            cached = usage.input_tokens_details.cached_tokens
            print(f"\n{cached} of {usage.input_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    main()
