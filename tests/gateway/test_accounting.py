"""What rules are said to save is what the engine reused beyond a cache of the prompts as they came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.changes import border_table, changes_of, edits_between
from gateway.accounting.forms import Form, Span
from gateway.app import create_app
from gateway.backends.base import Admission, GenerationRequest
from gateway.conversation import Conversation, map_texts
from gateway.model_files import ModelFiles
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Context, Mode, Rule, RuleClass
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from prefixcache.hashing import HASH_BYTES
from prefixcache.interface import Prompt, Scope
from prefixcache.shadow import ShadowIndex
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_chat import PATH
from tests.gateway.test_metrics import scrape

ADMIN = "admin-key-for-tests"
WORDS = " ".join(f"word{number}" for number in range(40))
BORDERS = border_table({0, 1})


def system_rule(name: str, change, mode: Mode = Mode.ON) -> Rule:
    """Changes the text of the first message."""

    def apply(conversation: Conversation, _: Context) -> Conversation:
        first, *rest = conversation.messages
        content = map_texts(first.content, change)
        if content == first.content:
            return conversation
        return replace(conversation, messages=(replace(first, content=content), *rest))

    return Rule(name, 1, RuleClass.SAFE, lambda params: apply, mode)


def line_ends(mode: Mode = Mode.ON) -> Rule:
    return system_rule("line_ends", lambda text: text.replace("\r\n", "\n"), mode)


def header(mode: Mode = Mode.ON) -> Rule:
    """Drops a first line that begins with #."""
    return system_rule("header", lambda text: text.partition("\n")[2] if text.startswith("#") else text, mode)


class Gateway:
    """A gateway without an engine, whose cache never evicts."""

    def __init__(
        self, model_files: ModelFiles, *rules: Rule, sampling: float = 1.0, backend: FakeBackend | None = None
    ) -> None:
        self.backend = backend or FakeBackend(reply=[5, 0])
        settings = Settings(accounting_sampling=sampling, admin_key=ADMIN)
        app = create_app(settings, self.backend, model_files, rules=RuleRegistry(rules))
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def ask(self, system: str, user: str = "hi") -> int:
        """Ask, and give the cached tokens."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        answer = await self.client.post(PATH, json={"model": "tiny", "messages": messages})
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def report(self) -> dict[str, Any]:
        answer = await self.client.get("/admin/v1/savings", headers={"authorization": f"Bearer {ADMIN}"})
        return answer.json()

    async def rules(self) -> dict[tuple[str, str], Any]:
        return {(row["rule"], row["mode"]): row for row in (await self.report())["rules"]}


def text(separator: str = "\n", first: str = "") -> str:
    return first + f"Be kind.{separator}Be short.{separator}" + WORDS


async def test_rule_is_credited_with_what_the_engine_reused_beyond_the_raw_prompts(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends())
    assert await gateway.ask(text("\n")) == 0
    cached = await gateway.ask(text("\r\n"))
    (row,) = (await gateway.rules()).values()
    assert row["fired_requests"] == row["sampled_requests"] == 1
    assert cached > 100
    # Both begin alike, up to the first line end: that much is no merit of the rule.
    assert cached - 16 <= row["saved_tokens"] == row["net_tokens"] < cached
    assert row["lost_tokens"] == 0


async def test_rule_that_changed_the_cached_prompt_is_credited_when_the_clean_one_comes(
    model_files: ModelFiles,
) -> None:
    gateway = Gateway(model_files, line_ends())
    await gateway.ask(text("\r\n"))
    cached = await gateway.ask(text("\n"))
    (row,) = (await gateway.rules()).values()
    assert row["fired_requests"] == 1
    assert 100 < row["saved_tokens"] < cached
    assert (await gateway.report())["unattributed"] == []


async def test_defect_that_every_request_has_alike_saves_nothing(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends())
    for number in range(5):
        cached = await gateway.ask(text("\r\n"), f"question {number}")
    assert cached > 100
    (row,) = (await gateway.rules()).values()
    assert row["fired_requests"] == row["sampled_requests"] == 5
    assert row["saved_tokens"] == row["lost_tokens"] == row["net_tokens"] == 0


async def test_credit_goes_to_the_rule_whose_change_made_the_raw_prompts_part(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, header(), line_ends())
    for number in range(4):  # every line end is changed in every request; only the header differs
        cached = await gateway.ask(text("\r\n", f"# request {number * 7919}\r\n"))
    rules = await gateway.rules()
    assert rules["header", "on"]["saved_tokens"] > 2 * cached
    assert rules["line_ends", "on"]["saved_tokens"] == 0
    assert rules["line_ends", "on"]["sampled_requests"] == 4


async def test_credit_is_not_lost_where_another_prompt_had_the_same_header(model_files: ModelFiles) -> None:
    """As with a clock: what begins most like a raw prompt may be another one, sent in the same minute."""
    gateway = Gateway(model_files, header())
    await gateway.ask("# one\n" + text(), "my question")
    await gateway.ask("# two\n" + "Other. " + text(), "another question")
    cached = await gateway.ask("# two\n" + text(), "my question")
    report = await gateway.report()
    (row,) = report["rules"]
    assert cached - 16 < row["saved_tokens"] <= cached
    assert report["unattributed"] == []


async def test_what_a_rule_costs_is_shown_as_negative(model_files: ModelFiles) -> None:
    numbers = iter(range(100))
    gateway = Gateway(model_files, system_rule("numbered", lambda text: f"{next(numbers)} {text}"))
    for _ in range(3):
        await gateway.ask(text())
    (row,) = (await gateway.rules()).values()
    assert row["saved_tokens"] == 0
    assert row["net_tokens"] == -row["lost_tokens"] < -200
    assert row["extrapolated_net_tokens"] == row["net_tokens"]


async def test_audit_changes_nothing_and_tells_what_would_have_been(model_files: ModelFiles) -> None:
    on = Gateway(model_files, header(), line_ends())
    audit = Gateway(model_files, header(Mode.AUDIT), line_ends(Mode.AUDIT))
    texts = [text("\n", f"# {number * 7919}\n") for number in range(4)]
    cached_on = [await on.ask(each) for each in texts]
    cached_audit = [await audit.ask(each) for each in texts]
    assert sum(cached_on) > 300 > sum(cached_audit)
    rules = await audit.rules()
    assert rules["header", "audit"]["saved_tokens"] == sum(cached_on) - sum(cached_audit)
    assert ("header", "on") not in rules
    assert (await on.rules())["header", "on"]["saved_tokens"] == rules["header", "audit"]["saved_tokens"]


async def test_rules_on_and_in_audit_mode_are_counted_apart(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, header(), line_ends(Mode.AUDIT))
    for number in range(4):
        separator = "\r\n" if number % 2 else "\n"
        await gateway.ask(text(separator, f"# {number * 7919}\n"))
    rules = await gateway.rules()
    assert rules["header", "on"]["saved_tokens"] > 100
    assert rules["line_ends", "audit"]["saved_tokens"] > 50


class CachingBackend(FakeBackend):
    """Its cache is the engine's own, answers included."""

    def _admission(self, request: GenerationRequest) -> Admission:
        config = self.model_info().cache
        assert config is not None
        self.cache = getattr(self, "cache", None) or ShadowIndex[None](config)
        scopes = tuple(Scope(space, size) for space, size in request.scopes)
        prompt = Prompt(request.token_ids, request.block_hashes, scopes, request.hash_epoch)
        hit = self.cache.serve(prompt, None)
        assert hit is not None
        self.cache.extend(prompt, self.reply[:-1], None)
        return Admission(len(request.token_ids), hit.num_cached_tokens, {})


async def test_answer_that_comes_back_is_no_rules_merit(model_files: ModelFiles, tokenizer: Tokenizer) -> None:
    said = "hello world, over the lazy dog and the quick brown fox"
    reply = [*tokenizer.encode(said).tolist(), 0]
    gateway = Gateway(model_files, header(), backend=CachingBackend(reply=reply))
    turns: list[dict[str, str]] = [{"role": "system", "content": text()}]
    for number in range(3):
        turns.append({"role": "user", "content": f"question {number}"})
        body = {"model": "tiny", "messages": turns}
        usage = (await gateway.client.post(PATH, json=body)).json()["usage"]
        turns.append({"role": "assistant", "content": said})
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 30  # the last answer was reused
    report = await gateway.report()
    assert report["sampled_requests"] == 3
    assert report["rules"] == report["unattributed"] == []


async def test_sample_of_nothing_is_no_data(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends(), sampling=0.0)
    await gateway.ask(text("\n"))
    await gateway.ask(text("\r\n"))
    report = await gateway.report()
    (row,) = report["rules"]
    assert (row["fired_requests"], row["sampled_requests"]) == (1, 0)
    assert row["saved_tokens"] is row["net_tokens"] is row["extrapolated_net_tokens"] is None
    assert (report["requests"], report["sampled_requests"]) == (2, 0)
    assert report["prompt_tokens"] > report["sampled_prompt_tokens"] == 0


@pytest.mark.parametrize("mode", [Mode.ON, Mode.AUDIT])
async def test_families_of_the_sample_are_whole_and_sums_are_extrapolated(model_files: ModelFiles, mode: Mode) -> None:
    gateway = Gateway(model_files, header(mode), sampling=0.5)
    families = [f"{number:02}: a family. " + WORDS for number in range(12)]
    for turn in range(3):
        for family in families:
            await gateway.ask(f"# {turn}\n{family}")
    report = await gateway.report()
    num_sampled = report["sampled_requests"]
    assert num_sampled % 3 == 0
    assert 0 < num_sampled < 36
    (row,) = report["rules"]
    assert (report["sampling"], row["mode"]) == (0.5, mode)
    assert row["fired_requests"] == 36
    assert row["sampled_requests"] == num_sampled
    assert row["saved_tokens"] > num_sampled * 2 / 3 * 100
    assert row["extrapolated_net_tokens"] == 2 * row["net_tokens"]


async def test_new_life_of_the_engine_begins_with_empty_shadows(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends())
    for _ in range(2):
        assert await gateway.ask(text("\r\n")) == 0
        gateway.backend.forget()
        gateway.backend.hash_epoch += 1
    report = await gateway.report()
    assert [row["net_tokens"] for row in report["rules"]] == [0]
    assert report["unattributed"] == []


async def test_cache_that_was_warm_before_the_first_request_is_no_rules_merit(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends())
    await gateway.ask(text("\r\n"))
    again = Gateway(model_files, line_ends())
    again.backend._cached |= gateway.backend._cached
    cached = await again.ask(text("\r\n"))
    report = await again.report()
    assert [row["saved_tokens"] for row in report["rules"]] == [0]
    assert [row["saved_tokens"] for row in report["unattributed"]] == [cached]


async def test_savings_are_counters_by_rule_and_mode(model_files: ModelFiles) -> None:
    gateway = Gateway(model_files, line_ends())
    assert not any("rule" in name for name in await scrape(gateway.client))
    await gateway.ask(text("\n"))
    await gateway.ask(text("\r\n"))
    (row,) = (await gateway.rules()).values()
    series = await scrape(gateway.client)
    assert series["prefixgate_rule_saved_tokens_total[on][line_ends]"] == row["saved_tokens"]
    assert series["prefixgate_rule_lost_tokens_total[on][line_ends]"] == 0
    assert series["prefixgate_rule_fired_requests_total[on][line_ends]"] == 1
    assert series["prefixgate_rule_sampled_requests_total[on][line_ends]"] == 1
    assert series["prefixgate_sampled_prompt_tokens_total"] == series["prefixgate_prompt_tokens_total"]


tokens = st.lists(st.integers(0, 6), max_size=30).map(lambda ids: np.array(ids, dtype=np.int32))


@given(tokens, tokens)
def test_edits_make_one_prompt_of_the_other(before: np.ndarray, after: np.ndarray) -> None:
    made, position = [], 0
    for edit in edits_between(before, after, BORDERS):
        assert edit.start >= position
        made += [*before[position : edit.start], *after[edit.new_start : edit.new_stop]]
        position = edit.stop
    assert [*made, *before[position:]] == after.tolist()


@pytest.mark.parametrize(
    ("prompts", "wanted"),
    [
        ([[1, 5, 6, 1, 7], [1, 5, 9, 1, 7]], [("a", (2, 3, 2, 3))]),
        ([[1, 5, 6, 1, 7], [1, 5, 1, 7, 8]], [("a", (2, 3, 2, 2)), ("a", (5, 5, 4, 5))]),
        # Each rule's place is told in the tokens of the first and of the last prompt.
        ([[1, 5, 6, 1, 7], [1, 6, 1, 7], [1, 6, 1, 9]], [("a", (1, 2, 1, 1)), ("b", (4, 5, 3, 4))]),
        ([[1, 7, 1, 5, 6], [1, 7, 1, 6], [1, 9, 9, 1, 6]], [("a", (3, 4, 4, 4)), ("b", (1, 2, 1, 3))]),
        # The second one changed what the first one wrote.
        ([[1, 5, 6, 7], [1, 8, 8, 7], [1, 8, 9, 7]], [("a", (1, 3, 1, 3)), ("b", (1, 3, 2, 3))]),
        # Turns came and went: all between is one change.
        ([[1, 5, 1, 6, 1, 7], [1, 6, 1, 7]], [("a", (1, 3, 1, 1))]),
    ],
)
def test_changes_are_told_in_the_tokens_before_and_after(prompts: list[list[int]], wanted: object) -> None:
    arrays = [np.array(prompt, dtype=np.int32) for prompt in prompts]
    assert changes_of(arrays, ["a", "b"][: len(arrays) - 1], BORDERS) == wanted


def form(hashes: str, *spans: tuple[str, int, int]) -> Form:
    """A letter is a block of 8 tokens."""
    return Form("".join(letter * HASH_BYTES for letter in hashes).encode(), [Span(*span) for span in spans])


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        (form("abcd", ("clock", 9, 11)), form("axyz"), "clock"),
        (form("abcd"), form("axyz", ("clock", 9, 11)), "clock"),
        (form("abcd", ("clock", 9, 11)), form("abxy"), None),  # the change is before the block where they part
        (form("abcd", ("clock", 9, 17)), form("abxy"), "clock"),
        (form("abcd", ("dropped", 8, 8)), form("axyz"), "dropped"),
        (form("abcd", ("line ends", 0, 32), ("clock", 9, 11)), form("axyz", ("line ends", 0, 32)), "clock"),
        (form("ab", ("clock", 0, 16)), form("abcd", ("clock", 0, 16)), None),  # one begins with the other
        (form("", ("clock", 0, 3)), form("abcd"), None),
        (form("abcdefg"), form("abcdefx", ("late", 50, 51)), "late"),
    ],
)
def test_prompts_are_kept_apart_by_the_least_change_in_the_block_where_they_part(
    one: Form, other: Form, rule: str | None
) -> None:
    assert one.parting_rule(other, 8) == rule
