"""With a real engine: what a rule is said to save is the difference between two gateways, one with it and one without,
and what was possible less what was lost is what was cached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from engine.config import CacheConfig, EngineConfig
from gateway.accounting.losses import Losses
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
async def gateway_with(
    files: ModelFiles, mode: Mode, num_blocks: int
) -> AsyncIterator[tuple[httpx.AsyncClient, Losses]]:
    cache = CacheConfig(block_size=8, num_blocks=num_blocks, growth_reserve=0)
    backend = LocalBackend(EngineConfig(model_path="chain", cache=cache), supervision=Supervision(), command=COMMAND)
    settings = Settings(accounting_sampling=1.0, admin_key=ADMIN)
    app = create_app(settings, backend, files, rules=RuleRegistry([header(mode), line_ends(mode)]))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", timeout=60) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield client, app.state.accounting.losses


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


@dataclass
class Outcome:
    """What came of all requests."""

    cached: int
    savings: dict[str, Any]
    losses: Losses

    @property
    def net(self) -> int:
        return sum(row["net_tokens"] for row in [*self.savings["rules"], *self.savings["unattributed"]])

    @property
    def unseen(self) -> int:
        """What had to be computed in any case, with the sums checked."""
        sums = self.losses.sums
        assert sums.cached_tokens == self.cached
        assert sums.possible_tokens - self.losses.lost.total() == self.cached
        return sums.prompt_tokens - sums.possible_tokens

    @property
    def computed(self) -> int:
        return self.losses.sums.prompt_tokens - self.cached


async def run(files: ModelFiles, mode: Mode, num_blocks: int) -> Outcome:
    """Send all requests, one after another."""
    cached = 0
    async with gateway_with(files, mode, num_blocks) as (client, losses):
        for messages in requests():
            body = {"model": "tiny", "messages": messages, "max_tokens": 5, "ignore_eos": True}
            usage = (await client.post(PATH, json=body)).json()["usage"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
        key = {"authorization": f"Bearer {ADMIN}"}
        pool = (await client.get("/admin/v1/cache", headers=key)).json()
        assert (pool["counters"]["evicted_blocks"] > 0) == (num_blocks < 100)
        return Outcome(cached, (await client.get("/admin/v1/savings", headers=key)).json(), losses)


async def test_savings_and_losses_are_what_gateways_with_and_without_rules_differ_by(model_files: ModelFiles) -> None:
    off, on, audit = [await run(model_files, mode, 1000) for mode in (Mode.OFF, Mode.ON, Mode.AUDIT)]
    assert audit.cached == off.cached
    assert on.cached - off.cached > 500
    assert on.net == audit.net == on.cached - off.cached
    assert off.savings["rules"] == off.savings["unattributed"] == []
    assert on.savings["unattributed"] == audit.savings["unattributed"] == []
    assert {row["rule"] for row in on.savings["rules"] if row["saved_tokens"]} == {"header"}
    assert on.unseen == off.unseen == audit.unseen == on.computed
    assert off.losses.lost == audit.losses.lost
    assert {reason for reason, _ in off.losses.lost} == {"rule_off"}
    assert off.losses.lost["rule_off", "system"] > 0.99 * (off.computed - on.computed) > 500
    assert on.losses.lost == {}


async def test_savings_and_losses_hold_in_a_small_pool(model_files: ModelFiles) -> None:
    """What is evicted is evicted in the shadow, too."""
    off, on = [await run(model_files, mode, 40) for mode in (Mode.OFF, Mode.ON)]
    assert on.net == on.cached - off.cached
    assert on.unseen == off.unseen < on.computed
    assert {reason for reason, _ in on.losses.lost} == {"evicted"}
    (*_, (most_blocks, kept)) = on.losses.room_needed()
    assert kept == on.losses.lost.total()
    larger = await run(model_files, Mode.ON, 40 + most_blocks)
    assert (
        larger.losses.lost.total() < 0.3 * kept
    )  # the ends of prompts were evicted earlier than what is missing first
