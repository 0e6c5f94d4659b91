"""Grammars: which tokens they allow, that each answer has its own place, and that a bad one hurts nobody else."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.grammars import MAX_QUEUED, NUM_COMPILERS, Grammar, GrammarFailure, Grammars, load_grammars
from engine.llm_engine import LLMEngine
from engine.sampler import Sampler
from tests.engine.test_sampler import make_request
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import EOS_TOKEN_ID, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_config
from tests.support.grammar_runner import (
    GrammarRunner,
    allowed_tokens,
    make_grammars,
    matches,
    regex_grammar,
    schema_grammar,
    text_of,
)

PATTERN = "[a-c]{3}x[0-9]{2,40}"
GRAMMAR = regex_grammar(PATTERN)


def compiled(grammars: Grammars, text: str) -> Grammar | GrammarFailure:
    """A grammar, waited for."""
    found = grammars.begin("r", text)
    deadline = time.monotonic() + 60
    while found is None and time.monotonic() < deadline:
        time.sleep(0.001)
        found = grammars.take_ready().get("r")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def grammars():
    made = make_grammars()
    assert isinstance(compiled(made, GRAMMAR), Grammar)
    yield made
    made.close()


def make_engine(grammars: Grammars | None, *, num_blocks: int = 64, **options: object) -> LLMEngine:
    runner = GrammarRunner(num_blocks=num_blocks)
    return LLMEngine(make_config(block_size=8, **options), runner, grammars=grammars, hash_seed=7)


def run(engine: LLMEngine) -> Transcript:
    """Until nothing runs, waits or compiles."""
    said = Transcript()
    deadline = time.monotonic() + 60
    while engine.is_compiling or engine.has_work:
        assert time.monotonic() < deadline
        if engine.has_work:
            said.step(engine)
    return said


SMALL_TOKENS = [b"", *(bytes([byte]) for byte in range(256)), b"aa", b"ab", b"ba", b"abb", b"bbbb", b"a,", b",b"]
PATTERNS = ["a*b", "(ab|ba){1,3}", "a{2,3}(,b)*", "(a|b){4}", "[^a]b?", "((a|ab)(c|bc)?)+,", "b(a,?){0,2}b"]
MAX_LENGTH, MAX_COMPLETION = 5, 2
"""Of a text, and of what makes it a match of one of these patterns, if anything does."""


@functools.cache
def language(pattern: str) -> tuple[set[bytes], set[bytes]]:
    """The reference: all short matches over a small alphabet, found by trying, and all that they begin with."""
    texts = (
        "".join(text) for n in range(MAX_LENGTH + MAX_COMPLETION + 1) for text in itertools.product("ab,c", repeat=n)
    )
    whole = {text.encode() for text in texts if re.fullmatch(pattern, text)}
    return whole, {text[:end] for text in whole for end in range(len(text) + 1)}


@pytest.fixture(scope="module")
def small_grammars():
    made = make_grammars(SMALL_TOKENS)
    yield made
    made.close()


@settings(max_examples=30, deadline=None)
@given(pattern=st.sampled_from(PATTERNS), choices=st.lists(st.integers(0, 10**6), max_size=4))
def test_a_mask_allows_a_token_iff_the_text_can_still_become_a_match(small_grammars, pattern, choices) -> None:
    whole, begun = language(pattern)
    grammar = compiled(small_grammars, regex_grammar(pattern))
    assert isinstance(grammar, Grammar)
    text = b""
    spelled = [token for token in range(1, len(SMALL_TOKENS)) if set(SMALL_TOKENS[token]) <= set(b"ab,c")]
    for choice in [*choices, 0]:
        candidates = {token for token in spelled if len(text + SMALL_TOKENS[token]) <= MAX_LENGTH}
        allowed = set(allowed_tokens(grammar, len(SMALL_TOKENS)))
        expected = {token for token in candidates if text + SMALL_TOKENS[token] in begun}
        assert (EOS_TOKEN_ID in allowed) == (text in whole)
        if text in whole or len({SMALL_TOKENS[token][0] for token in expected}) != 1:
            assert allowed & candidates == expected
        else:  # the next byte is forced, and of what spells the same only the tokenizer's own choice is allowed
            assert len(allowed & candidates) >= 1
            assert allowed & candidates <= expected
        going_on = sorted(allowed & candidates)
        if not going_on:
            return
        token = going_on[choice % len(going_on)]
        assert grammar.accept(token) is None
        text += SMALL_TOKENS[token]


@pytest.mark.parametrize("vocab_size", [264, 288, 289, 300])
def test_the_sampler_draws_only_what_each_row_allows(vocab_size: int) -> None:
    made = make_grammars(SMALL_TOKENS, vocab_size=vocab_size)
    first, second = compiled(made, regex_grammar("a+b")), compiled(made, regex_grammar("b+"))
    logits = torch.zeros(4, vocab_size)
    logits[:, 200] = 50.0
    drawn: list[set[int]] = [set() for _ in range(4)]
    for seed in range(25):
        bias = {SMALL_TOKENS.index(b"aa"): -90.0, 201: 99.0}
        requests = [
            make_request(seed=seed, temperature=1.0, logit_bias=bias),
            make_request(seed=seed, temperature=0.0),
            make_request(seed=seed, temperature=1.0, top_p=0.99, top_k=250),
            make_request(seed=seed, temperature=0.0),
        ]
        for row, grammar in ((0, first), (2, second), (3, second)):
            object.__setattr__(requests[row], "grammar", grammar)
        for row, token in enumerate(Sampler().sample(logits, requests).tolist()):
            drawn[row].add(token)
        alone = Sampler().sample(logits[2:], requests[2:]).tolist()  # every row has one
        assert set(alone) <= {1 + ord("b"), SMALL_TOKENS.index(b"bbbb")}
    a, b = 1 + ord("a"), 1 + ord("b")
    assert drawn[0] == {a, SMALL_TOKENS.index(b"ab")}
    assert drawn[1] == {200}
    assert drawn[2] == {b, SMALL_TOKENS.index(b"bbbb")}
    assert len(drawn[3]) == 1
    assert (logits[:, 200] == 50.0).all(), "others look at the logits"
    made.close()


def test_answers_match_and_the_others_go_on_as_ever(grammars: Grammars) -> None:
    engine = make_engine(grammars)
    add_request(engine, "held", prompt_of(20), max_tokens=60, grammar=GRAMMAR)
    add_request(engine, "free", prompt_of(20, seed=5), max_tokens=30)
    add_request(engine, "cut", prompt_of(9, seed=7), max_tokens=4, grammar=GRAMMAR)
    said = run(engine)
    assert matches(PATTERN, said.tokens["held"])
    assert said.finish == {"held": "stop", "free": "length", "cut": "length"}
    assert said.tokens["free"] == expected_tokens(prompt_of(20, seed=5), 30)
    assert all_blocks_unreferenced(engine)


def test_the_end_of_a_grammar_ends_the_answer_also_where_ends_are_ignored(grammars: Grammars) -> None:
    engine = make_engine(grammars)
    add_request(engine, "a", prompt_of(20), max_tokens=60, grammar=GRAMMAR, ignore_eos=True)
    said = run(engine)
    assert matches(PATTERN, said.tokens["a"])
    assert said.finish["a"] == "stop"


def test_each_fork_has_its_own_place(grammars: Grammars) -> None:
    engine = make_engine(grammars)
    add_request(engine, "a", prompt_of(21), max_tokens=60, n=4, seed=3, grammar=GRAMMAR)
    said = run(engine)
    assert len(said.tokens) == 4
    assert all(matches(PATTERN, tokens) for tokens in said.tokens.values())
    assert len({tuple(tokens) for tokens in said.tokens.values()}) == 4


def test_a_preempted_answer_goes_on_where_it_was(grammars: Grammars) -> None:
    pattern = "([a-m]{3}-){10,20}"
    engine = make_engine(grammars, num_blocks=12, growth_reserve=8)
    roomy = make_engine(grammars, num_blocks=200)
    heard = []
    for other in (engine, roomy):
        for index in range(4):
            add_request(other, str(index), prompt_of(10, seed=index), max_tokens=50, grammar=regex_grammar(pattern))
        heard.append(run(other))
    assert engine.scheduler.counters.preemptions > 0, "the pool was not short: the test tests nothing"
    assert heard[0].tokens == heard[1].tokens
    assert set(heard[0].finish) == set("0123")


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("start: nothing_of_the_kind", "unknown name"),
        (schema_grammar({"type": "object", "not": {}}), 'Unimplemented keys: ["not"]'),
        ("root ::= thing", "Rule 'thing'"),
        ("hello", "neither Lark nor GBNF"),
        (schema_grammar({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), "it matches nothing"),
        ("start: start", "it matches nothing"),
        ("start: /a(/", "regex parse error: unclosed group"),
        (schema_grammar({"type": "string", "pattern": "a{2"}), "unclosed counted repetition, in a{2"),
        ('start: a\na: "x" b\nb: %json {"type": "text"}', "in b: failed to compile JSON schema"),
        ("root ::= [b-a]", "once it is written in Lark, at "),
        (r'root ::= "\ud800"', "is no character"),
    ],
    ids=[
        "lark",
        "schema",
        "gbnf",
        "text",
        "circle",
        "start",
        "regex",
        "pattern",
        "schema-in-lark",
        "gbnf-in-lark",
        "surrogate",
    ],
)
def test_a_grammar_that_is_none_fails_its_request_alone(grammars: Grammars, grammar: str, why: str) -> None:
    engine = make_engine(grammars)
    fields = {"grammar": grammar, "grammar_field": "response_format"}
    add_request(engine, "bad", prompt_of(20), **fields)
    add_request(engine, "good", prompt_of(20, seed=1), max_tokens=60, grammar=GRAMMAR)
    said = run(engine)
    add_request(engine, "again", prompt_of(20), **fields)  # known by now
    said = Transcript() if not engine.has_work else said
    again = run(engine)
    for failed in (said.failed["bad"], again.failed["again"]):
        assert (failed.param, failed.retryable) == ("response_format", False)
        assert why in failed.message
    assert matches(PATTERN, said.tokens["good"])
    assert all_blocks_unreferenced(engine)


class UnrulyRunner(GrammarRunner):
    """Gives one request a token that its grammar does not allow: to the grammar this is what a limit that is met is."""

    def execute(self, output):
        result = super().execute(output)
        for part in output.requests:
            if part.request_id == "bad" and part.num_computed_tokens == 22:
                result.token_ids["bad"] = 1 + ord("!")
        return result


def test_an_answer_that_cannot_go_on_fails_alone_and_its_grammar_is_made_anew(grammars: Grammars) -> None:
    pattern = "[a-c]{40}"
    engine = LLMEngine(make_config(block_size=8), UnrulyRunner(), grammars=grammars, hash_seed=7)
    fields = {"grammar": regex_grammar(pattern), "grammar_field": "structured_outputs.regex", "max_tokens": 60}
    add_request(engine, "bad", prompt_of(20), **fields)
    add_request(engine, "good", prompt_of(20, seed=1), **fields)
    said = run(engine)
    assert said.failed["bad"].param == "structured_outputs.regex"
    assert said.failed["bad"].message.startswith("structured_outputs.regex: the answer cannot go on: ")
    assert len(said.tokens["bad"]) == 3
    assert matches(pattern, said.tokens["good"])
    assert grammars.begin("r", regex_grammar(pattern)) is None, "what has failed was given out again"
    grammars.cancel("r")
    assert all_blocks_unreferenced(engine)


def test_one_that_nothing_can_bound_is_given_up_soon(grammars: Grammars) -> None:
    crossed = {"allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnopqrstuvwxyz"]}
    engine = make_engine(grammars)
    add_request(engine, "bad", prompt_of(20), grammar=schema_grammar(crossed), grammar_field="response_format")
    add_request(engine, "good", prompt_of(20, seed=1), max_tokens=60)
    said = run(engine)
    assert "response_format: it is too complex" in said.failed["bad"].message
    assert said.tokens["good"] == expected_tokens(prompt_of(20, seed=1), 60)


def test_who_leaves_while_it_is_compiled_is_forgotten() -> None:
    made = make_grammars()
    engine = make_engine(made)
    add_request(engine, "gone", prompt_of(20), grammar=regex_grammar("a+"))
    assert engine.is_compiling
    assert engine.snapshot(1).waiting == {"short": 1, "long": 0}
    engine.abort("gone")
    assert not engine.is_compiling
    deadline = time.monotonic() + 60
    while not engine.has_work and time.monotonic() < deadline:  # until it is compiled after all
        time.sleep(0.001)
    assert engine.has_work
    assert run(engine).finish == {}
    made.close()


def test_a_crowd_of_one_tenant_is_bounded_and_does_not_hold_up_another() -> None:
    made = make_grammars()
    num = MAX_QUEUED + NUM_COMPILERS
    outcomes = [made.begin(str(index), regex_grammar(f"a{index}"), tenant="crowd") for index in range(num + 1)]
    assert outcomes[:-1] == [None] * num
    assert isinstance(outcomes[-1], GrammarFailure)
    assert outcomes[-1].is_retryable
    assert made.begin("same", regex_grammar("a60"), tenant="crowd") is None, "one that is queued already"
    assert made.begin("other", regex_grammar("b"), tenant="other") is None
    heard: dict[str, Grammar | GrammarFailure] = {}
    deadline = time.monotonic() + 60
    while "other" not in heard and time.monotonic() < deadline:
        heard |= made.take_ready()
    assert isinstance(heard["other"], Grammar)
    assert len(heard) <= 3 * NUM_COMPILERS
    for request_id in [*map(str, range(num)), "same"]:
        made.cancel(request_id)
    for _ in range(3000):
        made.take_ready()
    assert not made.has_ready
    assert made.num_waiting == 0
    assert isinstance(compiled(made, regex_grammar("c")), Grammar), "those whom nobody waits for are passed over"
    made.close()


def test_without_a_vocabulary_a_grammar_is_refused(tmp_path) -> None:
    assert load_grammars(tmp_path, vocab_size=10, eos_token_ids=frozenset({2})) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_grammars(tmp_path, vocab_size=10, eos_token_ids=frozenset({2})) is None
    engine = make_engine(None)
    with pytest.raises(InvalidRequestError, match="response_format: got a grammar, wanted none"):
        add_request(engine, "a", prompt_of(5), grammar=GRAMMAR, grammar_field="response_format")


def test_schema_answers_are_json(grammars: Grammars) -> None:
    engine = make_engine(grammars)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 70}, "b": {"enum": ["x", "é"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    add_request(engine, "a", prompt_of(5), max_tokens=90, n=3, seed=8, grammar=schema_grammar(schema))
    for tokens in run(engine).tokens.values():
        assert re.fullmatch(r'\{"a":-?\d+,"b":"(x|é)"\}', text_of(tokens))


def test_the_mask_of_a_failed_grammar_ends_the_answer(grammars: Grammars) -> None:
    grammar = compiled(grammars, regex_grammar("[a-c]{2}"))
    assert isinstance(grammar, Grammar)
    assert grammar.accept(1 + ord("z")) is not None
    assert allowed_tokens(grammar) == [EOS_TOKEN_ID]


def test_one_that_meets_a_limit_while_its_mask_is_computed_has_failed_and_not_ended(grammars: Grammars) -> None:
    text = 'start: ("a"{0,500} "b"{0,500}){0,500} "!"'  # a legion of ways to read each text
    grammar = compiled(grammars, text)
    assert isinstance(grammar, Grammar)
    for _ in range(40):
        allowed = allowed_tokens(grammar)
        if allowed == [EOS_TOKEN_ID]:
            break
        assert EOS_TOKEN_ID not in allowed
        assert grammar.accept(1 + ord("a")) is None
    assert "Too many items (limit 4000" in (grammar.accept(EOS_TOKEN_ID) or "")
    assert grammars.begin("r", text) is None, "what has failed was given out again"
    grammars.cancel("r")


def test_a_tame_pattern_of_many_states_goes_on_to_its_end() -> None:
    draws = random.Random(1)
    words = {bytes(draws.choices(b"abxyz", k=draws.randrange(2, 17))) for _ in range(10_000)}
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *sorted(words)]
    made = make_grammars(tokens)
    schema = {"type": "string", "pattern": "^.*[ab].{5}$", "maxLength": 50}
    grammar = compiled(made, schema_grammar(schema))
    assert isinstance(grammar, Grammar)
    text = b""
    while not text.endswith(b'"') or len(text) == 1:
        token = draws.choice(allowed_tokens(grammar, len(tokens)))
        assert (grammar.accept(token), token != EOS_TOKEN_ID) == (None, True), text
        text += tokens[token]
    assert re.fullmatch(r".*[ab].{5}", json.loads(text.decode(errors="replace")))
    made.close()


@pytest.mark.parametrize(
    ("grammar", "whole", "others"),
    [
        (r'root ::= "\u0041\u002d\u0022\U000000e9\x41"', ['A-"éA'], ["A"]),
        (r"root ::= [\u0042\u005d-\u005e\u002d]", ["B", "]", "^", "-"], ["A", "u", "_", "0"]),
        (r"root ::= [^\u005e]", ["a"], ["^"]),
        (r'root ::= "\\u0041"', ["\\u0041"], ["A"]),
        ('root ::= ("a"{2}){3}', ["aaaaaa"], ["aa", "aaaa"]),
        ('root ::= ((x)+)?\nx ::= ("a"{3})*', ["", "aaa"], ["a", "b"]),
    ],
)
def test_gbnf_means_what_it_says(grammars: Grammars, grammar: str, whole: list[str], others: list[str]) -> None:
    start = compiled(grammars, grammar)
    assert isinstance(start, Grammar)
    for text in [*whole, *others]:
        fork = start.fork()
        is_match = all(fork.accept(1 + byte) is None for byte in text.encode()) and EOS_TOKEN_ID in allowed_tokens(fork)
        assert is_match == (text in whole), text
