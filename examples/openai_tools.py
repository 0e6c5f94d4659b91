"""Have the model call a function, give it the result and print its answer.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python examples/openai_tools.py
"""

from __future__ import annotations

import json
import os
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "opening_hours",
        "description": "When the museum is open on a day of the week.",
        "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
    },
}


def opening_hours(day: str) -> str:
    return "closed" if day.lower() == "monday" else "10:00 to 18:00"


def main() -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = os.environ.get("OPENAI_MODEL") or client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": "When is the museum open on Sunday?"}]
    # Naming the function makes even a small model call it; "auto" leaves it the choice.
    choice: Any = {"type": "function", "function": {"name": "opening_hours"}}
    asked = client.chat.completions.create(
        model=model, messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=100
    )
    message = asked.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        result = opening_hours(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL], max_tokens=100)
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
