"""Summaries by models that think: without it where that costs no cached block, and never with thoughts in them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.storage.test_summary_calls import SAID, Chatting, opened
from tests.gateway.support.stored_gateway import Gateway, OpenGateway
from tests.gateway.support.tiny_model import EOS_ID, TEMPLATE, write_model

_QUIET = "enable_thinking is defined and not enable_thinking"
AT_THE_END = TEMPLATE.replace("{% endif %}", f"{{% if {_QUIET} %}}<think>\n</think>\n{{% endif %}}{{% endif %}}")
IN_THE_HEAD = f"{{% if {_QUIET} %}}<|turn|>think not<|stop|>\n{{% endif %}}{AT_THE_END}"

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def template() -> str:
    return AT_THE_END


@pytest.fixture
def model_files(tmp_path_factory: pytest.TempPathFactory, template: str) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("thinking"), template=template)


@pytest.fixture
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer(model_files.tokenizer_file)


@pytest.fixture
async def gateway(open_gateway: OpenGateway, tokenizer: Tokenizer) -> AsyncIterator[Gateway]:
    async with opened(open_gateway, tokenizer) as gateway:
        yield gateway


@pytest.mark.parametrize(("template", "is_quiet"), [(AT_THE_END, True), (IN_THE_HEAD, False)], ids=["end", "head"])
async def test_thinking_is_off_where_the_chat_is_written_the_same(
    gateway: Gateway, tokenizer: Tokenizer, is_quiet: bool
) -> None:
    gateway.backend.reply = [*tokenizer.encode(SAID).tolist(), EOS_ID]  # no other tokens than those of the text
    await Chatting(gateway).until_cut()
    previous, asking, _ = gateway.backend.requests[-3:]
    assert asking.token_ids[: len(previous.token_ids)].tolist() == previous.token_ids.tolist()
    assert tokenizer.decode(asking.token_ids.tolist()).endswith("</think>\n") == is_quiet


async def test_thoughts_are_no_part_of_a_summary(gateway: Gateway, tokenizer: Tokenizer) -> None:
    gateway.backend.reply = [*tokenizer.encode(f"<think>the lazy dog</think>{SAID}").tolist(), EOS_ID]
    await Chatting(gateway).until_cut()
    sent = tokenizer.decode(gateway.backend.requests[-1].token_ids.tolist())
    assert sent.index(SAID) < sent.index("the quick brown fox jumps")
    assert "the lazy dog" not in sent[: sent.index("the quick brown fox jumps")]
