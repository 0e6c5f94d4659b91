"""Scripted traffic: chats whose clients spoil the cache, texts and names with script in them, requests that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import httpx

from tests.dashboard.support.served import ServedGateway

SCRIPT = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
"""Must come out as text wherever it is shown; a page that was fooled has `window.hacked`."""
SCRIPT_TENANT = f"Acme {SCRIPT[:60]}"
TENANTS = ("museum", "library", SCRIPT_TENANT)
RULE = "strip_client_header"
"""Set to audit by `prepare`: the traffic's clients put a header of their own before each system text."""

_GUIDE = (
    "You are the friendly guide of a small museum of clocks. "
    "The museum is open from Tuesday to Sunday, from ten in the morning until six in the evening. "
    "Children under twelve come in for free, and groups of ten or more pay half. "
    "The oldest clock is a water clock from Alexandria; the youngest hangs at the exit and is always late. "
    "Answer in one short sentence, name the room, and never invent a clock that is not in the list below.\n"
)
_ROOMS = "\n".join(f"Room {number}: clock {number * 37 % 101}, made in {1400 + number * 13}." for number in range(24))
_QUESTIONS = ("Which clock is the oldest?", "When do you open on Sunday?", "Is there a café?", f"What is {SCRIPT}?")


class Traffic:
    """Clients of one gateway. Everything is counted up, so that no two runs of a method send the same."""

    def __init__(self, gateway: ServedGateway) -> None:
        self._gateway = gateway
        self._client = httpx.AsyncClient(base_url=gateway.url, timeout=60)
        self._admin = gateway.admin()
        self._numbers = itertools.count(1)
        self.keys: dict[str, str] = {}
        """Of a tenant by its name."""

    async def close(self) -> None:
        """End its connections."""
        await self._client.aclose()
        await self._admin.aclose()

    async def prepare(self) -> None:
        """Make the tenants, and set the rule to audit, as an operator would."""
        for tenant in TENANTS:
            await self._operate("POST", "/tenants", {"name": tenant}, status=201)
            made = await self._operate("POST", "/keys", {"tenant": tenant, "name": "traffic"}, status=201)
            self.keys[tenant] = made["key"]
        await self._operate("PUT", f"/rules/{RULE}", {"mode": "audit"})

    async def chats(self, num_chats: int = 3, num_turns: int = 3, *, tenants: tuple[str, ...] = TENANTS) -> int:
        """Hold chats that go on turn by turn, all at once; each request begins with a header of its own.

        Returns: tokens that came from the cache.
        """
        chats = (self._chat(tenants[number % len(tenants)], number, num_turns) for number in range(num_chats))
        return sum(await asyncio.gather(*chats))

    async def failures(self) -> None:
        """Requests that are refused: a wrong field, a wrong model, a key that nobody has."""
        tenant = TENANTS[0]
        for body, status in (({"messages": []}, 400), (self._body(_turns(0, 0), model="none"), 404)):
            answer = await self._post(tenant, {"model": "tiny", **body})
            assert answer.status_code == status, answer.text
        answer = await self._client.post("/v1/chat/completions", json=self._body(_turns(0, 0)))
        assert answer.status_code == 401, answer.text

    async def crowd(self, num_requests: int = 12) -> None:
        """Long prompts that share nothing, at once: they wait for one another and push others out of the cache."""
        asked = []
        for number in itertools.islice(self._numbers, num_requests):
            text = " ".join(f"word{number * 1009 + place}" for place in range(120))
            asked.append(self._post(TENANTS[1], self._body([{"role": "user", "content": text}])))
        for answer in await asyncio.gather(*asked):
            assert answer.status_code == 200, answer.text

    async def _chat(self, tenant: str, number: int, num_turns: int) -> int:
        num_cached = 0
        for turn in range(num_turns):
            messages = _turns(number, turn)
            messages[0]["content"] = self._header() + messages[0]["content"]
            answer = await self._post(tenant, self._body(messages))
            assert answer.status_code == 200, answer.text
            num_cached += answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return num_cached

    def _header(self) -> str:
        """As a client of a provider's has it, for the provider's books."""
        return f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={next(self._numbers) * 7919:x};\n"

    def _body(self, messages: list[dict[str, str]], *, model: str = "tiny") -> dict[str, Any]:
        return {"model": model, "messages": messages, "max_tokens": 6, "ignore_eos": True}

    async def _post(self, tenant: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return await self._client.post("/v1/chat/completions", json=body, headers=headers)

    async def _operate(self, method: str, path: str, body: dict[str, Any], *, status: int = 200) -> Any:
        answer = await self._admin.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


def _turns(chat: int, turn: int) -> list[dict[str, str]]:
    """The messages of a chat at a turn; what was answered is made up."""
    questions: Iterator[str] = itertools.islice(itertools.cycle(_QUESTIONS), chat, None)
    messages = [{"role": "system", "content": _GUIDE + _ROOMS}]
    for number in range(turn + 1):
        messages.append({"role": "user", "content": f"{next(questions)} (visitor {chat})"})
        if number < turn:
            messages.append({"role": "assistant", "content": "In the first room, on the left."})
    return messages
