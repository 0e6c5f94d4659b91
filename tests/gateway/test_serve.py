from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from gateway.model_files import ModelFiles

COMMAND = (sys.executable, "-m", "tests.gateway.support.serve_fake")


def start(files: ModelFiles, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, str(files.folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_a_curl_line_that_works_and_ends_on_a_signal(model_files: ModelFiles, number: int) -> None:
    process = start(model_files)
    assert process.stdout is not None
    try:
        says, _, curl = (process.stdout.readline() for _ in range(3))
        assert says.startswith("prefixgate serves tiny on http://127.0.0.1:")
        answer = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True, timeout=10)
        assert json.loads(answer.stdout)["object"] == "chat.completion"
        process.send_signal(number)
        _, log = process.communicate(timeout=10)
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
