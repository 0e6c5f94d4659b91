"""The replay on small chats of our own: rules give back what clients' habits cost, and nothing else does."""

from __future__ import annotations

import copy
import json
import random

import pytest

from benchmarks.perturbations import CLEAN, PERTURBATIONS, Perturbation
from benchmarks.replay import TEMPLATE, WANTED, Model, Row, play
from benchmarks.transcripts import Transcript, read_folder
from tests.gateway.support.tiny_model import write_model

HIDDEN_BY_THE_TEMPLATE = {"empty forms", "string or part", "cache markers"}
"""Rendering alone makes these equal; what the rules add is that the forwarded body is."""
COSTLY = 0.97
"""Of the maximum: a habit costs more than that. A trimmed reply costs only what follows it, which is the last turn."""
SYSTEM = """\
You keep the books of a small library.
Look up a reader before you lend to one. Lend at most three books at a time.
Never tell one reader what another one reads.
"""


def tool(name: str, *arguments: str) -> dict:
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": schema}}


TOOLS = [tool("find_reader", "name"), tool("list_books", "author", "after"), tool("lend", "title", "reader")]


def called(call_id: str, function: str, /, **arguments: str) -> dict:
    return {"id": call_id, "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}


def make_chat(number: int) -> Transcript:
    """Two rounds of two calls at once, a word between them, and a farewell."""
    messages: list[dict] = [{"role": "system", "content": SYSTEM}]
    for turn in range(3):
        first, second = f"c{number}{turn}a", f"c{number}{turn}b"
        messages += [
            {"role": "user", "content": f"I am reader {number}, and I want book {turn} of the shelf by the door."},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": f"Reader {number} wants book {turn}: I look up both at once.",
                "tool_calls": [
                    called(first, "list_books", author=f"Author {turn}", after=f"19{number}0"),
                    called(second, "find_reader", name=f"Reader {number}"),
                ],
            },
            {"role": "tool", "tool_call_id": first, "content": f'{{"titles": ["Book {turn}", "Book {turn + 9}"]}}'},
            {"role": "tool", "tool_call_id": second, "content": f'{{"reader": {number}, "lent": {turn}}}'},
            {
                "role": "assistant",
                "content": f"You have {turn} books, reader {number}, and Book {turn} is there. It is yours until May.",
            },
        ]
    return Transcript(messages, TOOLS)


CHATS = [make_chat(number) for number in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The benchmark's template in the words of the tiny tokenizer."""
    template = TEMPLATE.read_text().replace("<|im_start|>", "<|turn|>").replace("<|im_end|>", "<|stop|>")
    files = write_model(tmp_path_factory.mktemp("replay"))
    return Model.of_files(files, template, end_of_turn="<|stop|>", block_size=8)


def row_of(model: Model, perturbation: Perturbation) -> Row:
    tallies = {mode: play(mode, perturbation, CHATS, model) for mode in ("off", "audit", "on", "maximum")}
    return Row(perturbation, **tallies)


@pytest.mark.parametrize("perturbation", PERTURBATIONS[1:], ids=lambda perturbation: perturbation.name)
def test_rules_give_back_what_a_habit_costs(model: Model, perturbation: Perturbation) -> None:
    row = row_of(model, perturbation)
    assert row.missing_rules == []
    assert row.share >= WANTED
    assert row.audit.rate == pytest.approx(row.on.rate, abs=0.01), "audit mode foretells it"
    if perturbation.name in HIDDEN_BY_THE_TEMPLATE:
        assert row.off.rate == pytest.approx(row.maximum.rate)
    else:
        assert row.off.hit_tokens < row.on.hit_tokens, "a normalizer that does nothing must fail"
        assert row.off.rate < COSTLY * row.maximum.rate or perturbation.name == "replies trimmed"


def test_rules_leave_clean_chats_alone(model: Model) -> None:
    row = row_of(model, CLEAN)
    assert row.on.hit_tokens == row.off.hit_tokens == row.audit.hit_tokens == row.maximum.hit_tokens
    assert row.maximum.rate > 0.7
    assert row.verdict() == (True, "as without rules")


@pytest.mark.parametrize("perturbation", PERTURBATIONS, ids=lambda perturbation: perturbation.name)
def test_habits_are_pure_and_seeded(perturbation: Perturbation) -> None:
    body = CHATS[0].body(CHATS[0].turns[-1])
    before = copy.deepcopy(body)
    assert perturbation.perturbed(body, "1") == perturbation.perturbed(body, "1")
    assert body == before
    if perturbation is not CLEAN:
        assert (
            any(perturbation.perturbed(body, str(seed)) != before for seed in range(9))
            or "trimmed" in perturbation.name
        )


def test_habits_change_form_and_not_content() -> None:
    body = CHATS[0].body(CHATS[0].turns[-1])
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    for perturbation in PERTURBATIONS:
        changed = perturbation.perturbed(body, str(random.Random(1).random()))
        texts = [message["content"] for message in changed["messages"] if message["role"] == "user"]
        assert [text if isinstance(text, str) else text[0]["text"] for text in texts] == said
        assert len(changed["messages"]) == len(body["messages"])


def test_every_format_is_read(tmp_path) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "It is open."},
        {"role": "assistant", "content": "It is open."},
    ]
    (tmp_path / "tau").mkdir()
    (tmp_path / "tau" / "a.json").write_text(json.dumps([{"traj": turns}]))
    (tmp_path / "swe").mkdir()
    history = [{**turn, "tool_call_ids": ["t1"]} for turn in turns]
    (tmp_path / "swe" / "a.traj").write_text(json.dumps({"history": history}))
    (tmp_path / "code").mkdir()
    lines = [
        {"type": "progress"},
        {"type": "user", "message": {"content": "Look."}},
        {"type": "assistant", "message": {"id": "m", "content": [{"type": "thinking", "thinking": "A door."}]}},
        {
            "type": "assistant",
            "message": {
                "id": "m",
                "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "door"}}],
            },
        },
        {
            "type": "user",
            "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "It is open."}]},
        },
        {"type": "assistant", "message": {"id": "n", "content": [{"type": "text", "text": "It is open."}]}},
    ]
    (tmp_path / "code" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    sets = read_folder(tmp_path)
    assert set(sets) == {"tau", "swe", "code"}
    for (chat,) in sets.values():
        assert chat.messages[0]["role"] == "system"
        assert [message["role"] for message in chat.messages[1:]] == ["user", "assistant", "tool", "assistant"]
        assert chat.messages[2]["tool_calls"] == [call]
        assert chat.messages[3]["tool_call_id"] == "t1"
        assert chat.turns == [2, 4]
        assert [entry["function"]["name"] for entry in chat.tools] == ["look"]
    assert sets["code"][0].messages[2]["reasoning_content"] == "A door."
