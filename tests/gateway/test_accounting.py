"""What rules are said to save is what the engine reused beyond a cache of the prompts as they came."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.accounting.accounting import MAX_WAITING, Accounting, Origin, Receipt
from gateway.app import create_app
from gateway.auth import Identity
from gateway.backends.base import Admission, GenerationRequest
from gateway.backends.control import HashedPrompt
from gateway.conversation import Conversation, map_texts
from gateway.errors import InvalidRequestError
from gateway.explain.records import PromptRecord
from gateway.model_files import ModelFiles
from gateway.normalize.registry import Normalized, RuleRegistry
from gateway.normalize.rule import Context, Mode, Rule, RuleClass
from gateway.normalize.rules import built_in_rules
from gateway.normalize.run import Step
from gateway.prefix import PrefixHasher
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from prefixcache.interface import Prompt, Scope
from prefixcache.shadow import ShadowIndex
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import TOOL_TEMPLATE, write_model
from tests.gateway.test_chat import PATH
from tests.gateway.test_metrics import scrape

ADMIN = "admin-key-for-tests"
WORDS = " ".join(f"word{number}" for number in range(40))


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
        return Admission(len(request.token_ids), hit.num_cached_tokens, {}, "diverged")


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


def tool(name: str) -> dict[str, Any]:
    function = {"name": name, "description": f"Looks up {name}.", "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("mode", ["on", "audit"])
@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("canonical_tool_order", {"tools": [tool("weather"), tool("trains"), tool("books")]}),
        ("strip_client_header", {"first": "x-anthropic-billing-header: cc_version=1.2; cch=1f0a2;\n"}),
        ("crlf_to_lf_system", {"separator": "\r\n"}),
    ],
)
async def test_built_in_rules_are_credited_by_name(
    tmp_path: Path, rule: str, changed: dict[str, Any], mode: str
) -> None:
    files = write_model(tmp_path, template=TOOL_TEMPLATE)
    registry = built_in_rules()
    if mode == "audit":
        registry = RuleRegistry(
            [replace(each, default=Mode.AUDIT) for each in registry.rules if each.default is Mode.ON]
        )
    gateway = Gateway(files, *registry.rules)
    gateway.backend.max_model_len = 4096
    plain = {"tools": [tool("books"), tool("trains"), tool("weather")], "separator": "\n", "first": ""}
    for parts in (plain, {**plain, **changed}, plain):
        system = {"role": "system", "content": text(parts["separator"], parts["first"])}
        body = {"model": "tiny", "messages": [system, {"role": "user", "content": "hi"}], "tools": parts["tools"]}
        assert (await gateway.client.post(PATH, json=body)).status_code == 200
    report = await gateway.report()
    saved = {row["rule"]: row["net_tokens"] for row in report["rules"] if row["net_tokens"]}
    assert saved.keys() == {rule}
    assert saved[rule] > 50
    assert {row["mode"] for row in report["rules"]} == {mode}
    assert report["unattributed"] == []


def refuse_when(free: threading.Event) -> Any:
    def hash_prompt(*_: object) -> HashedPrompt:
        free.wait(60)
        raise InvalidRequestError("the template refuses it")

    return hash_prompt


async def test_requests_that_cannot_be_looked_at_are_told_apart_from_those_that_saved_nothing() -> None:
    free = threading.Event()
    accounting = Accounting(refuse_when(free), special_ids=frozenset({0}), sampling=1.0)
    model = FakeBackend().model_info()
    sent = PrefixHasher().prompt(np.arange(20, dtype=np.int32), identity=Identity("a"), model=model)
    chat = Conversation(())
    normalized = Normalized(chat, ("header",), chat, steps=(Step("header", chat, chat),))
    origin = Origin(normalized, RuleRegistry([]).rule_set(), Context())
    record = PromptRecord("chatcmpl-1", "r1", "a", PATH, 20, 0, (), ())
    for _ in range(MAX_WAITING + 3):
        admission = Admission(20, 0, {}, "never_cached")
        accounting.admit(sent, origin, admission, identity=Identity("a"), model=model, record=record)
    free.set()
    await accounting.settle()
    report = accounting.savings.report()
    assert (report["dropped_requests"], report["uncounted_requests"]) == (3, MAX_WAITING)
    assert report["sampled_requests"] == report["sampled_prompt_tokens"] == 0
    assert report["rules"][0]["saved_tokens"] is None
    accounting.close()
    accounting.end(Receipt())  # an answer that ends after the gateway did
