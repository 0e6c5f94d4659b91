"""An agent with two tools: LangChain's model class in a loop that ends when the model calls no tool any more.

pip install langchain-openai
OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none OPENAI_MODEL=… python examples/langchain_agent.py

It takes a model that knows how to call tools; the default one of 135M parameters ends without the right answer.
"""

from __future__ import annotations

import os

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MAX_TURNS = 6
MAX_TOKENS = 200  # of an answer: a small model may not find an end


@tool
def ticket_price(visitor: str) -> int:
    """Price of a ticket in euros, for an adult or a child."""
    return 5 if visitor == "child" else 12


@tool
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


TOOLS = {one.name: one for one in (ticket_price, add)}


def main() -> None:
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "smollm2-135m-instruct"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        temperature=0,
        max_tokens=MAX_TOKENS,
        timeout=120,  # seconds
    ).bind_tools(list(TOOLS.values()))
    head, question = "Use the tools. Answer when you have the numbers.", "What do an adult and a child pay together?"
    messages: list[BaseMessage] = [SystemMessage(head), HumanMessage(question)]
    for number in range(1, MAX_TURNS + 1):
        print(f"turn {number}", flush=True)
        messages.append(answer := model.invoke(messages))
        for call in answer.tool_calls:
            messages.append(result := TOOLS[call["name"]].invoke(call))
            print(f"{call['name']}({call['args']}) -> {result.content}")
        if not answer.tool_calls:
            print(answer.content)
            return
    print(f"no answer after {MAX_TURNS} turns")


if __name__ == "__main__":
    main()
