"""llama.cpp's server on the real model, and a gateway before it in an environment that has no torch.

`LLAMA_SERVER` names the server's binary, `PYTHON_WITHOUT_TORCH` a Python with the project and without torch; where that is
not set, one is made, which takes a minute. Run with `pytest -m foreign -s tests/foreign`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
ADMIN_KEY = "open-sesame"
_SECONDS = 120


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """Where the model lies; pulled when it is missing."""
    subprocess.run([sys.executable, "-m", "gateway", "models", "pull", MODEL], cwd=ROOT, check=True)
    found = subprocess.run(
        [sys.executable, "-m", "gateway", "models", "path", MODEL], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return Path(found.stdout.strip())


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python in which torch cannot be imported."""
    name = os.environ.get("PYTHON_WITHOUT_TORCH")
    if name is None:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        name = str(folder / "bin" / "python")
        install = [name, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(ROOT)]
        subprocess.run(install, check=True)
    code = "import importlib.util as u; print([n for n in ('torch', 'transformers', 'numba') if u.find_spec(n)])"
    found = subprocess.run([name, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n", "wanted an environment without the engine's packages"
    return name


@pytest.fixture(scope="session")
def engine_url(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The foreign engine, with one slot, so that what it reuses is a matter of order alone."""
    binary = os.environ.get("LLAMA_SERVER")
    if binary is None:
        pytest.fail("LLAMA_SERVER: not set, wanted the path of llama.cpp's llama-server")
    weights = next(model_folder.glob("*.gguf"))
    port = _free_port()
    argv = [binary, "-m", str(weights), "--port", str(port), "-c", "8192", "-np", "1", "--no-webui", "--cache-ram", "0"]
    argv += ["-t", "1"]  # several would spin while they wait for one another, and starve the gateway of few cores
    with _process(argv, tmp_path_factory.mktemp("engine") / "log") as _:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health")
        yield url


@pytest.fixture(scope="session")
def gateway_url(
    engine_url: str, model_folder: Path, python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The gateway, as an operator starts it."""
    folder, port = tmp_path_factory.mktemp("gateway"), _free_port()
    argv = [python, "-m", "gateway", "serve", "--upstream", engine_url, "--tokenizer", str(model_folder)]
    argv += ["--port", str(port), "--db", f"sqlite+aiosqlite:///{folder}/x.db", "--accounting-sampling", "1"]
    environment = {**os.environ, "PREFIXGATE_ADMIN_KEY": ADMIN_KEY, "PREFIXGATE_STORE_CONTENT": "true"}
    with _process(argv, folder / "log", environment):
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/ready")
        yield url


@contextlib.contextmanager
def _process(argv: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a command; what it printed is shown when it did not end as it should."""
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(url: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"{url} did not answer within {_SECONDS} s")
