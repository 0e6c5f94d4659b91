"""Stream an answer with OpenAI's SDK, asynchronously, and print the time to its first token.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_streaming.py
"""

from __future__ import annotations

import asyncio
import os
import time

from openai import AsyncOpenAI


async def main() -> None:
    client = AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or (await client.models.list()).data[0].id
    asked_at, first_at = time.perf_counter(), None
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Write two sentences about old clocks."}],
        max_tokens=80,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_at = first_at or time.perf_counter()
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage:
            waited = (first_at or time.perf_counter()) - asked_at
            print(f"\n{chunk.usage.completion_tokens} tokens, the first after {waited:.3f} s")


if __name__ == "__main__":
    asyncio.run(main())
