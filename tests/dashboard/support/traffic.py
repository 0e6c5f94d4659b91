"""Scripted traffic: chats whose clients spoil the cache, texts and names with script in them, requests that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from tests.dashboard.support.served import ServedGateway

SCRIPT = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
"""Must come out as text wherever it is shown; a page that was fooled has `window.hacked`."""
SCRIPT_TENANT = f"Acme {SCRIPT[:60]}"
TENANTS = ("museum", "library", SCRIPT_TENANT)
LIMITED_TENANT = "visitor"
"""May ask once a minute."""
ARCHIVE_TENANT = "archive"
"""Holds chats that become too long, with the context policy on for it alone."""
POLICY = {"high": 0.12, "low": 0.06, "document_tokens": 100, "keep_units": 2}
PROMPT = "museum-desk"
"""Registered by `prepare` for the first tenant, with two versions, of which the first is active."""
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
_DESK = (
    "You sit at the desk of the museum. Visitors ask you what they may bring, where their coats go and how to pay. "
    "Be kind, answer in one short sentence, and send whoever is angry to a person. Dogs wait outside, bags go into lockers.\n"
)
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

    async def everything(self) -> None:
        """A round of all that follows."""
        await self.prepare()
        await self.archive()
        await self.chats()
        await self.desk()
        await self.failures()
        await self.crowd()

    async def prepare(self) -> None:
        """Make tenants and a prompt, and set the rule to audit, as an operator would."""
        for tenant in (*TENANTS, LIMITED_TENANT, ARCHIVE_TENANT):
            await self._operate("POST", "/tenants", {"name": tenant}, status=201)
            made = await self._operate("POST", "/keys", {"tenant": tenant, "name": "traffic"}, status=201)
            self.keys[tenant] = made["key"]
        await self._operate("PATCH", f"/tenants/{LIMITED_TENANT}", {"limits": {"requests_per_minute": 1}})
        await self._operate("PUT", f"/rules/{RULE}", {"mode": "audit"})
        policy = {"tenant": ARCHIVE_TENANT, "mode": "on", "params": POLICY}
        await self._operate("PUT", "/rules/context_policy", policy)
        prompt = {"name": PROMPT, "scope": TENANTS[0], "text": _DESK, "retention": {"pin": True}}
        await self._operate("POST", "/prompts", prompt, status=201)
        second = {"text": _DESK.replace("one short sentence", "two short sentences")}
        await self._operate("POST", f"/prompts/{PROMPT}/versions", second, status=201)

    async def chats(self, num_chats: int = 3, num_turns: int = 3, *, tenants: tuple[str, ...] = TENANTS) -> int:
        """Hold chats that go on turn by turn, all at once; each request begins with a header of its own.

        Returns: tokens that came from the cache.
        """
        chats = (self._chat(tenants[number % len(tenants)], number, num_turns) for number in range(num_chats))
        return sum(await asyncio.gather(*chats))

    async def tokens(self) -> tuple[int, int]:
        """Prompt tokens since the gateway's start, and those that came from the cache."""
        told = (await self._gateway.get("/overview"))["tokens"]
        return told["prompt"], told["cached"]

    async def archive(self, num_turns: int = 8) -> None:
        """A chat with documents that becomes too long and is cut, more than once."""
        messages = [{"role": "system", "content": "You keep the archive of a museum of clocks."}]
        for turn in range(num_turns):
            messages.append({"role": "user", "content": _page_of(turn) + f"Who repaired clock {turn}?"})
            await self._post(ARCHIVE_TENANT, self._body(messages))
            messages.append({"role": "assistant", "content": _found(turn)})

    async def desk(self, num_requests: int = 4) -> None:
        """Requests that name the registered prompt, and one that has nearly its text."""
        for number in range(num_requests):
            body = self._body([{"role": "user", "content": f"May I bring {number} dogs?"}])
            await self._post(TENANTS[0], {**body, "prompt": {"id": PROMPT}})
        nearly = {"role": "system", "content": _DESK.replace("of the museum", "of our museum")}
        await self._post(TENANTS[0], self._body([nearly, {"role": "user", "content": "Hello?"}]))

    async def failures(self) -> None:
        """Requests that are refused: an empty conversation, a wrong model, a limit."""
        body = self._body([{"role": "user", "content": "hi"}])
        await self._post(TENANTS[0], {**body, "messages": []}, status=400)
        await self._post(TENANTS[0], {**body, "model": "none"}, status=404)
        await self._post(LIMITED_TENANT, body)
        await self._post(LIMITED_TENANT, body, status=429)

    async def crowd(self, num_requests: int = 12) -> None:
        """Long prompts that share nothing, at once: they wait for one another and push others out of the cache."""
        asked = []
        for number in itertools.islice(self._numbers, num_requests):
            text = " ".join(f"word{number * 1009 + place}" for place in range(120))
            asked.append(self._post(TENANTS[1], self._body([{"role": "user", "content": text}])))
        await asyncio.gather(*asked)

    async def _chat(self, tenant: str, number: int, num_turns: int) -> int:
        num_cached = 0
        for turn in range(num_turns):
            messages = _turns(number, turn)
            messages[0]["content"] = self._header() + messages[0]["content"]
            answer = await self._post(tenant, self._body(messages))
            num_cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return num_cached

    def _header(self) -> str:
        """As a client of a provider's has it, for the provider's books."""
        return f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={next(self._numbers) * 7919:x};\n"

    def _body(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"model": "tiny", "messages": messages, "max_tokens": 6, "ignore_eos": True}

    async def _post(self, tenant: str, body: dict[str, Any], *, status: int = 200) -> Any:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        answer = await self._client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

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


def _page_of(turn: int) -> str:
    """A document, which stands before every third question."""
    if turn % 3:
        return ""
    lines = (f"On page {page} clock {turn * 10 + page} is wound by keeper {page * 37 % 23}." for page in range(12))
    return f"{' '.join(lines)}\n\n"


def _found(turn: int) -> str:
    """A long answer, made up."""
    return "\n".join(f"In {1900 + row} clock {turn} was repaired by master {row * 7 % 11}." for row in range(8))
