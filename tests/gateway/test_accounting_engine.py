"""With a real engine: what a rule is said to save is the difference between two gateways, one with it and one without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend, Supervision
from gateway.model_files import ModelFiles
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode
from gateway.settings import Settings
from tests.gateway.test_accounting import ADMIN, WORDS, header, line_ends
from tests.gateway.test_chat import PATH
from tests.support.chain_worker import COMMAND


@asynccontextmanager
async def gateway_with(files: ModelFiles, mode: Mode, num_blocks: int) -> AsyncIterator[httpx.AsyncClient]:
    cache = CacheConfig(block_size=8, num_blocks=num_blocks, growth_reserve=0)
    backend = LocalBackend(EngineConfig(model_path="chain", cache=cache), supervision=Supervision(), command=COMMAND)
    settings = Settings(accounting_sampling=1.0, admin_key=ADMIN)
    app = create_app(settings, backend, files, rules=RuleRegistry([header(mode), line_ends(mode)]))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", timeout=60) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield client


def requests() -> list[list[dict[str, str]]]:
    """Chats that go on, with a header of their own in each request and now and then other line ends."""
    made = []
    for turn in range(3):
        for chat in range(3):
            separator = "\r\n" if (turn + chat) % 2 else "\n"
            system = f"# {turn * 7919 + chat * 31}\n" + separator.join(("Be kind.", "Be short.", WORDS))
            messages = [{"role": "system", "content": system}]
            for earlier in range(turn + 1):
                messages += [
                    {"role": "user", "content": f"question {earlier} of chat {chat}"},
                    {"role": "assistant", "content": "it is as you say"},
                ]
            made.append(messages[:-1])
    return made


async def run(files: ModelFiles, mode: Mode, num_blocks: int) -> tuple[int, dict[str, Any]]:
    """Send all requests, one after another; give the cached tokens and what the accounting says."""
    cached = 0
    async with gateway_with(files, mode, num_blocks) as client:
        for messages in requests():
            body = {"model": "tiny", "messages": messages, "max_tokens": 5, "ignore_eos": True}
            usage = (await client.post(PATH, json=body)).json()["usage"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
        key = {"authorization": f"Bearer {ADMIN}"}
        pool = (await client.get("/admin/v1/cache", headers=key)).json()
        assert (pool["counters"]["evicted_blocks"] > 0) == (num_blocks < 100)
        return cached, (await client.get("/admin/v1/savings", headers=key)).json()


def net(report: dict[str, Any]) -> int:
    return sum(row["net_tokens"] for row in [*report["rules"], *report["unattributed"]])


async def test_sum_of_savings_is_what_two_gateways_differ_by(model_files: ModelFiles) -> None:
    off, nothing = await run(model_files, Mode.OFF, 1000)
    on, saved = await run(model_files, Mode.ON, 1000)
    audit, foretold = await run(model_files, Mode.AUDIT, 1000)
    assert audit == off
    assert on - off > 500
    assert net(saved) == net(foretold) == on - off
    assert nothing["rules"] == nothing["unattributed"] == saved["unattributed"] == foretold["unattributed"] == []
    assert {row["rule"] for row in saved["rules"] if row["saved_tokens"]} == {"header"}


async def test_sum_of_savings_holds_in_a_small_pool(model_files: ModelFiles) -> None:
    """What is evicted is evicted in the shadow, too."""
    off, _ = await run(model_files, Mode.OFF, 40)
    on, saved = await run(model_files, Mode.ON, 40)
    assert net(saved) == on - off
