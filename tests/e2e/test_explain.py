"""Misses on the real model: the region, both sides and the rule that would have helped, as an operator reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SYSTEM = " ".join(f"Rule {number}: answer harbour question {number} politely and in one line." for number in range(9))
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Tells the {name} of a harbour."}}
    for name in ("berths", "tides", "weather")
]
USER = {"role": "user", "content": "Which berths are free for the MARIE on the north quay?"}
ANSWER = {"role": "assistant", "content": "N2, N4 and N7 are free for the MARIE on the north quay."}
NEXT = {"role": "user", "content": "And when is high water there?"}


class Operator:
    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._headers = {"authorization": f"Bearer {server.admin_key}"}

    def explain(self, system: str, *turns: dict[str, str], **fields: Any) -> dict[str, Any]:
        """Ask, and explain it."""
        messages = [{"role": "system", "content": system}, *turns]
        body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 2, "temperature": 0, **fields}
        answer = httpx.post(f"{self._url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        name = answer.json()["id"]
        report = httpx.get(f"{self._url}/admin/v1/requests/{name}/explain", headers=self._headers, timeout=60)
        assert report.status_code == 200, report.text
        return {**report.json(), "answer": answer.json()}

    def switch_off(self, rule: str) -> None:
        url = f"{self._url}/admin/v1/rules/{rule}"
        answer = httpx.put(url, json={"mode": "off"}, headers=self._headers, timeout=60)
        assert answer.status_code == 200, answer.text


def test_misses_are_explained_by_region_characters_and_rule(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    with Server(["--chat-template", str(template), "--store-content"]) as server:
        ask = Operator(server)
        first = ask.explain(f"{SYSTEM} Now it is 10:41:07.", USER, tools=TOOLS)
        assert (first["reason"], first["rule"]) == ("never_cached", None)

        clock = ask.explain(f"{SYSTEM} Now it is 10:42:30.", USER, tools=TOOLS)
        assert (clock["reason"], clock["region"]["owner"]) == ("diverged", "messages[0]")
        assert (clock["prompt"][:4], clock["cached"][:4]) == ("2:30", "1:07")
        assert clock["nearest"] == first["id"]
        assert clock["rule"] == {"name": "relocate_volatile", "mode": "off"}

        told = ask.explain(
            f"{SYSTEM} Now it is 10:42:30, about.",
            USER,
            tools=TOOLS,
            diagnostics={"previous_message_id": clock["id"]},
            prompt_cache_options={"comparison_response_id": clock["id"]},
        )["answer"]
        assert told["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
        assert told["prompt_cache_diagnostics"]["reason"] == "input_changed"

        grown = ask.explain(f"{SYSTEM} Now it is 10:42:30.", USER, ANSWER, NEXT, tools=TOOLS)
        edited = {"role": "assistant", "content": "N2 and N4 are free for the MARIE on the north quay."}
        changed = ask.explain(f"{SYSTEM} Now it is 10:42:30.", USER, edited, NEXT, tools=TOOLS)
        assert (changed["region"]["owner"], changed["rule"], changed["nearest"]) == ("messages[2]", None, grown["id"])
        assert (changed["common"][-2:], changed["prompt"][:4], changed["cached"][:4]) == ("N2", " and", ", N4")

        asked = ask.explain(f"{SYSTEM} Now it is 10:42:30.", {"role": "user", "content": "Which ships?"}, tools=TOOLS)
        assert (asked["region"]["owner"], asked["prompt"][:5], asked["cached"][:6]) == (
            "messages[1]",
            "ships",
            "berths",
        )

        assert not ask.explain(f"{SYSTEM} Now it is 10:42:30.", USER, tools=TOOLS[::-1])["diverges"]
        ask.switch_off("canonical_tool_order")
        swapped = ask.explain(f"{SYSTEM} Now it is 10:42:30.", USER, tools=TOOLS[::-1])
        assert swapped["region"]["owner"] == "tools[0]"
        assert (swapped["prompt"][:7], swapped["cached"][:6]) == ("weather", "berths")
        assert swapped["rule"] == {"name": "canonical_tool_order", "mode": "off"}
