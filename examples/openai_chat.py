"""Ask twice with OpenAI's SDK, and see how much of the second prompt came from the cache.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_chat.py
"""

from __future__ import annotations

import os

from openai import OpenAI

SYSTEM = "You are the friendly guide of a small museum of clocks, and answer in one short sentence."


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
    for question in ("Name the capital of France.", "Name the capital of Italy."):
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            temperature=0,
            max_tokens=60,
        )
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens
        print(f"{question}\n  {answer.choices[0].message.content}")
        print(f"  {cached} of {usage.prompt_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    main()
