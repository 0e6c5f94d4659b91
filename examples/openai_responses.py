"""The same through OpenAI's newer endpoint: an answer, and the events of a streamed one.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_responses.py
"""

from __future__ import annotations

import os

from openai import OpenAI

INSTRUCTIONS = "You are the friendly guide of a small museum of clocks, and answer in one short sentence."


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
    answer = client.responses.create(
        model=model, instructions=INSTRUCTIONS, input="Name the capital of France.", max_output_tokens=60
    )
    print(answer.output_text)
    with client.responses.stream(
        model=model, instructions=INSTRUCTIONS, input="Name the capital of Italy.", max_output_tokens=60
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="", flush=True)
        usage = stream.get_final_response().usage
    print(f"\n{usage.input_tokens_details.cached_tokens} of {usage.input_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    main()
