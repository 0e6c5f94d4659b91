"""Answers are remembered when they are returned, and come back whole however the client sends them."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from gateway.answer import Answer
from gateway.answer_pieces import Text
from gateway.app import create_app
from gateway.backends.base import TokenBatch
from gateway.conversation import Conversation, Message
from gateway.model_files import ModelFiles
from gateway.normalize.echo_repair import echo_repair
from gateway.normalize.memory import TurnMemory
from gateway.normalize.reasoning import reasoning_restore
from gateway.normalize.recollection import NextTurn, Place, Recollection
from gateway.normalize.registry import RuleRegistry
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import EOS_ID

PATH = "/v1/chat/completions"
REPLY = "hello world, over the lazy dog"


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(reply=[*tokenizer.encode(REPLY + "\n\n").tolist(), EOS_ID])


def chat(*answers: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Well?"}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    return {"model": "tiny", "messages": messages, **fields}


async def prompts_of(client: httpx.AsyncClient, backend: FakeBackend, *bodies: dict[str, object]) -> list[list[int]]:
    """The tokens that the engine got for each body."""
    backend.requests.clear()
    for body in bodies:
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        _ = answer.text
    return [request.token_ids.tolist() for request in backend.requests]


@pytest.mark.parametrize("stream", [False, True])
async def test_trimmed_answer_is_given_back_whole(
    client: httpx.AsyncClient, backend: FakeBackend, *, stream: bool
) -> None:
    await client.post(PATH, json=chat(stream=stream))
    trimmed, whole = await prompts_of(client, backend, chat(REPLY), chat(REPLY + "\n\n"))
    assert trimmed == whole


async def test_trimmed_answer_that_nobody_returned_passes_as_it_is(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    trimmed, whole = await prompts_of(client, backend, chat(REPLY), chat(REPLY + "\n\n"))
    assert trimmed != whole


@pytest.mark.parametrize(("limit", "said"), [({"max_tokens": 2}, None), ({"stop": ["lazy"]}, "hello world, over the ")])
async def test_answer_that_was_cut_is_remembered_too(
    client: httpx.AsyncClient, backend: FakeBackend, limit: dict[str, object], said: str | None
) -> None:
    backend.reply = [*backend.reply[:1], *backend.reply]
    answer = await client.post(PATH, json=chat(**limit))
    text = answer.json()["choices"][0]["message"]["content"]
    fields = await client.post(PATH, json=chat(text + " \n"))
    assert fields.status_code == 200
    padded, whole = await prompts_of(client, backend, chat(text + " \n"), chat(text))
    assert padded == whole
    if said is not None:
        assert text.endswith(said)


async def test_third_turn_finds_the_first_and_the_second(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post(PATH, json=chat())
    await client.post(PATH, json=chat(REPLY))
    trimmed, whole = await prompts_of(client, backend, chat(REPLY, REPLY), chat(REPLY + "\n\n", REPLY + "\n\n"))
    assert trimmed == whole


def test_client_that_leaves_with_the_last_text_has_read_it_all(tokenizer: Tokenizer) -> None:
    memory, place = TurnMemory(), Place(b"", b"")
    answer = Answer(tokenizer, stops=(), next_turn=NextTurn(Recollection(memory, "a"), [place]))
    assert answer.push(TokenBatch([*tokenizer.encode(REPLY).tolist(), EOS_ID], "stop")) == [Text(REPLY)]
    assert memory.has("a")  # before that text is written


async def test_answer_that_did_not_end_is_not_remembered(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.fail_after = len(backend.reply) - 1
    await client.post(PATH, json=chat(stream=True))
    backend.fail_after = None
    trimmed, whole = await prompts_of(client, backend, chat(REPLY), chat(REPLY + "\n\n"))
    assert trimmed != whole


async def test_nothing_is_remembered_where_the_rules_are_off(backend: FakeBackend, model_files: ModelFiles) -> None:
    trimmed, whole = await _after_a_turn(backend, model_files, [])
    assert trimmed != whole


async def test_nothing_is_remembered_where_there_is_no_memory_for_it(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    trimmed, whole = await _after_a_turn(backend, model_files, [echo_repair()], turn_memory=0)
    assert trimmed != whole


async def test_one_rule_is_enough_to_remember(backend: FakeBackend, model_files: ModelFiles) -> None:
    trimmed, whole = await _after_a_turn(backend, model_files, [echo_repair()])
    assert trimmed == whole


async def _after_a_turn(
    backend: FakeBackend, files: ModelFiles, rules: Sequence, **settings: object
) -> list[list[int]]:
    app = create_app(Settings(**settings), backend, files, rules=RuleRegistry(rules))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        await client.post(PATH, json=chat())
        return await prompts_of(client, backend, chat(REPLY), chat(REPLY + "\n\n"))


def test_an_answer_is_remembered_for_each_form_of_its_prompt_and_no_other() -> None:
    """What rules in audit mode would have made of the prompt comes back next time, too."""
    forms = [Conversation((Message("user", text),)) for text in ("Well? It is 10:00.", "Well?", "What?")]
    memory = Recollection(TurnMemory(), "a")
    memory.next_turn(*forms[:2]).remember(Message("assistant", "Yes.\n"), [5, 6])
    turns = [
        memory.turns_of(
            Conversation((*form.messages, Message("assistant", "Yes."), Message("user", "?"))), same_head=True
        )
        for form in forms
    ]
    assert [[turn.token_ids.tolist() for turn in found.values()] for found in turns] == [[[5, 6]], [[5, 6]], []]


async def test_engine_gets_its_own_tokens_back_however_it_wrote_the_text(
    tokenizer: Tokenizer, model_files: ModelFiles
) -> None:
    """One token a character is no tokenization that anybody would choose; it is what was cached."""
    written = [token for char in REPLY + " \n" for token in tokenizer.encode(char).tolist()]
    for rules, is_given_back in ((None, True), (RuleRegistry([reasoning_restore()]), False)):
        backend = FakeBackend(reply=[*written, EOS_ID])
        app = create_app(Settings(), backend, model_files, rules=rules)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            await client.post(PATH, json=chat())
            first = backend.requests[0].token_ids.tolist()
            for echo in (REPLY + " \n", REPLY) if is_given_back else (REPLY + " \n",):
                (second,) = await prompts_of(client, backend, chat(echo))
                assert (second[: len(first) + len(written)] == first + written) == is_given_back
