"""Get an answer that fits a schema, as an object.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_structured.py
"""

from __future__ import annotations

import os

from openai import OpenAI
from pydantic import BaseModel, Field


class Clock(BaseModel):
    """What the model is to fill in."""

    name: str = Field(max_length=30)
    year: int = Field(ge=1300, le=2100)
    runs: bool


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
    answer = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Describe the oldest clock of a small museum, in JSON."}],
        response_format=Clock,
        max_tokens=200,
    )
    clock = answer.choices[0].message.parsed
    print(f"{clock.name}, {clock.year}, {'runs' if clock.runs else 'stands still'}" if clock else "no answer")


if __name__ == "__main__":
    main()
