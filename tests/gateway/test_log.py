from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from gateway.app import create_app
from gateway.log import LogFormat, configure_logging
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.test_chat import PATH, chat


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    before = (root.level, root.handlers[:], alembic.level)
    root.handlers[:] = []  # else pytest's own would be closed
    yield
    root.level, root.handlers[:], alembic.level = before


async def lines_of(client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], kind: LogFormat) -> list[str]:
    """What chats with two ids and a failure leave in the log."""
    configure_logging(kind)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("test").warning("no request at hand %d", 5)
    for request_id, content in (("one", "a prompt"), ("two", "another")):
        await client.post(PATH, json=chat(content), headers={"x-request-id": request_id})
    return capsys.readouterr().err.splitlines()


async def test_json_lines_have_the_id_of_their_request(
    client: httpx.AsyncClient, backend: FakeBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    other, one, two = [json.loads(line) for line in await lines_of(client, capsys, "json")]
    assert (one["event"], one["request_id"], one["level"], one["logger"]) == ("ended", "one", "info", "gateway.chat")
    assert (one["tenant"], one["generated"]) == ("default", len(backend.reply))
    assert two["request_id"] == "two"
    assert (other["event"], other["level"]) == ("no request at hand 5", "warning")
    assert "request_id" not in other
    assert all(line["timestamp"].endswith("Z") for line in (one, two, other))


async def test_text_lines_say_the_same(client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    other, one, _ = await lines_of(client, capsys, "text")
    assert " INFO gateway.chat: ended request_id=one id=chatcmpl-" in one
    assert other.endswith(" WARNING test: no request at hand 5")


@pytest.mark.parametrize("kind", ["text", "json"])
async def test_failure_is_logged_with_its_traceback_and_no_prompt(
    client: httpx.AsyncClient, backend: FakeBackend, capsys: pytest.CaptureFixture[str], kind: LogFormat
) -> None:
    configure_logging(kind)
    backend.batch_size = 0
    await client.post(PATH, json=chat("hush hush", stream=True), headers={"x-request-id": "mine"})
    out = capsys.readouterr().err
    assert "Traceback" in out
    assert "mine" in out
    assert "hush" not in out
    if kind == "json":
        assert "ValueError" in json.loads(out.splitlines()[0])["exception"]


async def test_line_of_the_server_about_an_unforeseen_error_has_the_id_too(
    backend: FakeBackend, model_files: ModelFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("json")
    backend.batch_size = 0
    async with running(create_app(Settings(), backend, model_files)) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}{PATH}"
        assert (await client.post(url, json=chat(), headers={"x-request-id": "mine"})).status_code == 500
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "Started server process" in lines[0]["event"]
    assert not any("color_message" in line for line in lines)
    (error,) = [line for line in lines if line["level"] == "error"]
    assert (error["logger"], error["request_id"]) == ("uvicorn.error", "mine")
