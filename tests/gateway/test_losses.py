"""What was possible less what was lost is what was cached, and each loss has its reason and its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import httpx
import numpy as np
import pytest

from gateway.accounting.changes import border_table
from gateway.accounting.losses import MAX_MISSES, Losses
from gateway.accounting.maximum import Best, Maximum, Possible
from gateway.app import create_app
from gateway.auth import Identity
from gateway.backends.base import Admission, GenerationRequest, ModelInfo
from gateway.explain.records import PromptRecord
from gateway.model_files import ModelFiles
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode, Rule
from gateway.prefix import PrefixHasher
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_accounting import header, line_ends
from tests.gateway.test_chat import PATH
from tests.gateway.test_metrics import scrape

ROOMY, SMALL = 2000, 32


@dataclass
class CachingBackend(FakeBackend):
    """Its cache is the engine's own, answers included, and says why it has no more."""

    num_blocks: int = ROOMY
    cache: ShadowIndex[None] | None = None

    def model_info(self) -> ModelInfo:
        info = super().model_info()
        config = PrefixCacheConfig(self.num_blocks, block_size=16, hash_seed=7, hash_epoch=self.hash_epoch)
        return ModelInfo(**{name: getattr(info, name) for name in info.__slots__} | {"cache": config})

    def _admission(self, request: GenerationRequest) -> Admission:
        config = self.model_info().cache
        assert config is not None
        self.cache = self.cache or ShadowIndex[None](config)
        scopes = tuple(Scope(space, size) for space, size in request.scopes)
        prompt = Prompt(request.token_ids, request.block_hashes, scopes, request.hash_epoch)
        found = self.cache.explain(prompt)
        hit = self.cache.serve(prompt, None)
        assert hit is not None
        self.cache.extend(prompt, self.reply[:-1], None)
        return Admission(len(request.token_ids), hit.num_cached_tokens, {}, found.reason, found.num_common_tokens)


Chat = Sequence[tuple[str, str]]


@dataclass
class Traffic:
    """One gateway and what came of its requests."""

    files: ModelFiles
    rules: Sequence[Rule] = ()
    num_blocks: int = ROOMY
    sampling: float = 1.0
    cached: int = 0
    losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        self.backend = CachingBackend(reply=[5, 0], num_blocks=self.num_blocks)
        options = Settings(accounting_sampling=self.sampling)
        app = create_app(options, self.backend, self.files, rules=RuleRegistry(self.rules))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
        self.accounting = app.state.accounting
        self.losses = self.accounting.losses

    async def send(self, *chats: Chat) -> None:
        """Send chats one after another, and check that the sums close."""
        for chat in chats:
            messages = [{"role": role, "content": text} for role, text in chat]
            answer = await self.client.post(PATH, json={"model": "tiny", "messages": messages})
            self.cached += answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        await self.accounting.settle()
        sums = self.losses.sums
        assert sums.cached_tokens == self.cached
        assert sums.possible_tokens - self.losses.lost.total() == self.cached


def chat(system: str, *turns: str) -> Chat:
    roles = ("user", "assistant")
    return [("system", system + " Be kind." * 10), *((roles[place % 2], text) for place, text in enumerate(turns))]


async def test_prompt_that_differs_where_nothing_could_help_loses_nothing(model_files: ModelFiles) -> None:
    traffic = Traffic(model_files, [header()])
    await traffic.send(chat("one", "hi"), chat("two", "hi"), chat("one", "hi", "hello", "why?"))
    assert traffic.losses.sums.possible_tokens == traffic.cached > 0
    assert traffic.losses.lost == {}


@pytest.mark.parametrize("rules", [[header(Mode.OFF)], [header(Mode.AUDIT)], [header(Mode.OFF), line_ends(Mode.AUDIT)]])
async def test_clean_prompt_behind_an_odd_one_loses_by_the_rule_that_is_not_on(
    model_files: ModelFiles, rules: Sequence[Rule]
) -> None:
    traffic = Traffic(model_files, rules)
    await traffic.send(chat("# 7919\nAnswer.", "hi"), chat("Answer.", "hi"))
    worst, header_itself = traffic.losses.top(0, float("inf"), 20)
    assert (worst.reason, worst.region) == ("rule_off", "system")
    assert worst.lost_tokens > 30 > 10 > header_itself.lost_tokens


async def test_eviction_is_no_loss_by_a_rule_that_all_prompts_lack_alike(model_files: ModelFiles) -> None:
    traffic = Traffic(model_files, [line_ends(Mode.OFF)], SMALL)
    chats = [chat(f"{number}.\r\nAnswer. " + "Be short." * 20, "hi") for number in range(4)]
    await traffic.send(*chats, *chats)
    *firsts, evicted = Counter({reason: tokens for (reason, _), tokens in traffic.losses.lost.items()}).most_common()[
        ::-1
    ]
    assert evicted[0] == "evicted"
    assert evicted[1] > 100
    assert sum(tokens for _, tokens in firsts) <= 2 * len(chats)  # the \r of each, when it first came


async def test_answer_that_comes_back_is_possible_as_well(
    model_files: ModelFiles, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "hello world, over the lazy dog and the quick brown fox"
    traffic = Traffic(model_files)
    differences: list[int] = []
    count = traffic.losses.count

    def noted(record: PromptRecord, admission: Admission, possible: Possible) -> None:
        differences.append(possible.num_tokens - admission.num_cached_tokens)
        count(record, admission, possible)

    monkeypatch.setattr(traffic.losses, "count", noted)
    traffic.backend.reply = [*tokenizer.encode(said).tolist(), 0]
    await traffic.send(chat("Answer.", "hi"), chat("Answer.", "hi", said, "why?"))
    assert differences == [0, 0]


async def test_new_life_of_the_engine_is_a_loss(model_files: ModelFiles) -> None:
    traffic = Traffic(model_files)
    await traffic.send(chat("Answer.", "hi"))
    traffic.backend.cache = None
    traffic.backend.hash_epoch += 1
    await traffic.send(chat("Answer.", "hi"))
    assert traffic.cached == 0
    assert traffic.losses.lost.total() == traffic.losses.sums.possible_tokens > 40


async def test_what_was_cached_before_the_gateway_came_was_possible(model_files: ModelFiles) -> None:
    first, second = Traffic(model_files), Traffic(model_files)
    await first.send(chat("Answer.", "hi"))
    second.backend.cache = first.backend.cache
    await second.send(chat("Answer.", "hi"))
    assert second.losses.sums.possible_tokens == second.cached > 0
    assert second.losses.lost == {}


async def test_nothing_sampled_is_no_data(model_files: ModelFiles) -> None:
    traffic = Traffic(model_files, sampling=0.0)
    answer = await traffic.client.post(PATH, json={"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 200
    await traffic.accounting.settle()
    assert not any("possible" in name or "lost" in name for name in await scrape(traffic.client))


async def test_series_are_the_sums(model_files: ModelFiles) -> None:
    traffic = Traffic(model_files, [header(Mode.OFF)])
    await traffic.send(chat("# 7919\nAnswer.", "hi"), chat("# 31\nAnswer.", "hi"))
    series, losses = await scrape(traffic.client), traffic.losses
    assert series["prefixgate_possible_tokens_total"] == losses.sums.possible_tokens > traffic.cached
    assert series["prefixgate_sampled_cached_tokens_total"] == traffic.cached
    assert series["prefixgate_lost_tokens_total[rule_off][system]"] == losses.lost["rule_off", "system"]
    assert series["prefixgate_maximum_evicted_blocks_total"] == 0


async def test_no_mode_of_the_rules_computes_less_than_what_nobody_sent_before(model_files: ModelFiles) -> None:
    random, pieces = Random(7), ["a.", "b.\r\n", "b.\n", "# 1\nc " + "word " * 20, "# 22\nc " + "word " * 20]
    chats = [chat(*random.choices(pieces, k=random.choice([2, 4]))) for _ in range(16)]
    unseen, computed = [], []
    for modes in ((Mode.ON, Mode.ON), (Mode.AUDIT, Mode.ON), (Mode.OFF, Mode.OFF)):
        traffic = Traffic(model_files, [header(modes[0]), line_ends(modes[1])])
        await traffic.send(*chats)
        sums = traffic.losses.sums
        unseen.append(sums.prompt_tokens - sums.possible_tokens)
        computed.append(sums.prompt_tokens - traffic.cached)
        assert {reason for reason, _ in traffic.losses.lost} <= {"rule_off"}
    assert unseen[0] == computed[0]
    assert all(0.95 * unseen[0] < other <= unseen[0] for other in unseen)  # as they came some meet in more of a block
    assert max(computed) > min(computed) == computed[0]


@pytest.mark.parametrize(
    ("reason", "possible", "told"),
    [
        ("diverged", Possible(90, is_parted=True), "rule_off"),
        ("diverged", Possible(90), "diverged"),
        ("evicted", Possible(90, is_parted=True), "evicted"),
        ("never_cached", Possible(90, num_dropped=50), "rule_off"),
        ("never_cached", Possible(90, num_dropped=49), "never_cached"),
        ("hit", Possible(90), "unexplained"),
        ("share_cap", Possible(90), "unexplained"),
    ],
)
def test_reason_is_the_engines_where_no_rule_would_have_helped(reason: str, possible: Possible, told: str) -> None:
    losses = Losses()
    losses.count(record_of(0), Admission(100, 40, {}, reason), possible)
    assert losses.lost == {(told, "unknown"): 50}


def test_change_behind_what_is_reused_parts_nothing() -> None:
    hasher, model, identity = PrefixHasher(), FakeBackend().model_info(), Identity("acme")
    maximum = Maximum(PrefixCacheConfig(100, block_size=16, hash_seed=7, hash_epoch=1))

    def possible(head: int, tail: int, *changed: int) -> Possible:
        ids = np.array([head] * 32 + [tail] * 40, dtype=np.int32)
        sent = ids.copy()
        sent[list(changed)] = 999
        prompts = [hasher.prompt(each, identity=identity, model=model) for each in (sent, ids)]
        return maximum.admit(Best.of(*prompts, border_table(frozenset())))

    assert possible(1, 2) == Possible(0)
    assert possible(1, 3, 40) == Possible(32)
    assert possible(1, 3, 41) == Possible(64, is_parted=True)
    assert possible(1, 3, 40) == Possible(64)


def test_sums_of_one_request_are_kept_together() -> None:
    kept: list[dict[tuple[str, str], float]] = []

    class Together:
        def add(self, sums: Mapping[tuple[str, str], float]) -> None:
            kept.append(dict(sums))

    Losses(Together()).count(record_of(0), Admission(100, 40, {}, "evicted"), Possible(90))
    (sums,) = kept
    assert (
        sums["possible_tokens", ""] - sums["lost_tokens", "evicted:unknown"] == sums["sampled_cached_tokens", ""] == 40
    )


def test_room_that_was_needed_grows_with_what_it_keeps() -> None:
    losses = Losses()
    for evictions_ago, lost in ((0, 5), (3, 7), (4, 20), (3, 1), (None, 9)):
        losses.count(record_of(0), Admission(100, 0, {}, "evicted", evictions_ago=evictions_ago), Possible(lost))
    losses.count(record_of(0), Admission(100, 0, {}, "diverged", evictions_ago=8), Possible(50))
    assert losses.room_needed() == [(1, 5), (4, 13), (8, 33)]


def record_of(number: int) -> PromptRecord:
    return PromptRecord(f"chatcmpl-{number}", f"r{number}", "acme", PATH, 5000, 0, (), ())


def test_misses_are_bounded_and_the_worst_of_a_time_come_first() -> None:
    now = 0.0
    losses = Losses(clock=lambda: now)
    for number in range(MAX_MISSES + 10):
        now = float(number)
        losses.count(record_of(number), Admission(5000, 0, {}, "evicted"), Possible(number % 100 + 1))
    assert [miss.lost_tokens for miss in losses.top(0, 2000, 3)] == [100, 100, 100]
    assert [miss.completion_id for miss in losses.top(0, 21, 3)] == [f"chatcmpl-{at}" for at in (20, 19, 18)]
    assert losses.top(0, 9, 3) == []
    assert {miss.at for miss in losses.top(1005, 2000, 20)} == {1005, 1006, 1007, 1008, 1009}
    assert losses.lost.keys() == {("evicted", "unknown")}
