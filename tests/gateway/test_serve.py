from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path

import httpx
import pytest

from gateway.commands.serve import main
from gateway.model_files import ModelFiles
from tests.gateway.support.tiny_model import write_model

COMMAND = (sys.executable, "-m", "tests.gateway.support.serve_fake")


def start(files: ModelFiles, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, str(files.folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("package", ["torch", "llguidance"])
def test_serve_without_the_engines_packages_says_what_to_do(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "prefixgate[engine]" in said
    assert "--upstream" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_a_curl_line_that_works_and_ends_on_a_signal_while_somebody_listens(
    model_files: ModelFiles, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    process = start(model_files, "ready", "60")
    assert process.stdout is not None
    try:
        says, _, curl = (process.stdout.readline() for _ in range(3))
        assert says.startswith("prefixgate serves tiny on http://127.0.0.1:")
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True, timeout=10)
        assert json.loads(answer.stdout)["object"] == "chat.completion"
        url, headers = says.split()[-1], {"authorization": "Bearer open-sesame"}
        with httpx.stream("GET", f"{url}/admin/v1/live", headers=headers) as live:
            lines = live.iter_lines()
            assert next(lines) == "event: overview"
            process.send_signal(number)
            _, log = process.communicate(timeout=30)  # half of its grace for answers
            assert list(lines)[-1] == "", "it ended in order"
        assert process.returncode in (0, -number)
        assert "NOTICE: no API key exists" in log
        assert "Traceback" not in log
    finally:
        process.kill()
        process.communicate()


def test_serve_ends_where_the_engine_never_works(model_files: ModelFiles) -> None:
    process = start(model_files, "failed")
    out, log = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the engine failed: no memory" in log
    assert out == ""


def test_serve_on_a_taken_port_says_so_and_not_that_it_listens(model_files: ModelFiles) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(model_files, "ready", "10", str(taken.getsockname()[1]))
        out, log = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert "address already in use" in log
    assert "listens on" not in log
    assert out == ""


def test_serve_of_a_broken_tokenizer_ends_with_a_sentence(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    (tmp_path / "config.json").write_text("{}")
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PREFIXGATE_DB": f"sqlite+aiosqlite:///{tmp_path}/x.db"},
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr
    assert f"prefixgate serve: {tmp_path / 'tokenizer.json'}: got a file that is no tokenizer" in ended.stderr


def ask(client: httpx.AsyncClient, *, stream: bool) -> Awaitable[httpx.Response]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("grace_seconds", "num_signals"), [("0.3", 1), ("600", 2)], ids=["grace-over", "second-signal"]
)
async def test_signal_ends_answers_under_way_with_clean_errors(
    model_files: ModelFiles, number: int, grace_seconds: str, num_signals: int
) -> None:
    process = start(model_files, "slow", grace_seconds)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            asked = [asyncio.ensure_future(ask(client, stream=stream)) for stream in [True, False] * 3]
            await requests_run(client, len(asked))
            for _ in range(num_signals):
                process.send_signal(number)
                await asyncio.sleep(0.3)
            answers = await asyncio.gather(*asked)
        for answer in answers[::2]:
            error = json.loads(answer.text.removeprefix("data: "))["error"]
            assert (answer.status_code, error["type"], error["code"]) == (200, "server_error", "engine_failed")
        for answer in answers[1::2]:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
            assert answer.headers["retry-after"] == "5"
        _, log = process.communicate(timeout=30)
        assert process.returncode in (0, -number)
        assert "Traceback" not in log
        assert "ERROR" not in log
    finally:
        process.kill()
        process.communicate()


def test_signal_cuts_a_client_that_takes_nothing(model_files: ModelFiles) -> None:
    process = start(model_files, "slow", "0.1")
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
            assert httpx.get(f"{url}/health").status_code == 200  # by now it waits for a body that never comes
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
        assert "Traceback" not in log
    finally:
        process.kill()
        process.communicate()


async def requests_run(client: httpx.AsyncClient, number: int) -> None:
    """Wait until the fake backend runs so many."""
    async with asyncio.timeout(30):
        while f'prefixgate_requests_running{{lane="short"}} {number}.0' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.05)
