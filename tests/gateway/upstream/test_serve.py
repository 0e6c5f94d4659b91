"""The command itself, in a process in which nothing of the engine can be imported."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx

from tests.gateway.support.server import running
from tests.gateway.upstream.mock import BODY, PATH, STREAM, MockUpstream

CODE = """
import sys
for name in ("torch", "transformers", "numba", "triton", "safetensors", "gguf", "engine", "kernels"):
    sys.modules[name] = None
from gateway.commands.serve import main
sys.exit(main(sys.argv[1:]))
"""


async def test_serve_in_front_of_an_upstream_without_an_engine(tmp_path: Path) -> None:
    unended = STREAM.removesuffix(b"data: [DONE]\n\n")
    upstream = MockUpstream(pieces=[unended, b""], content_type=b"text/event-stream", hangs_after=1)
    async with running(upstream) as port:  # type: ignore[arg-type]
        argv = ["--upstream", f"http://127.0.0.1:{port}", "--port", "0", "--db", f"sqlite+aiosqlite:///{tmp_path}/x.db"]
        environment = {**os.environ, "PREFIXGATE_ADMIN_KEY": "open-sesame", "PREFIXGATE_UPSTREAM_KEY": "sk-1"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CODE, *argv, stdout=pipe, stderr=pipe, env=environment
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                while not (line := (await process.stdout.readline()).decode()).startswith("prefixgate serves"):
                    assert line, (await process.stderr.read()).decode()
            url = line.split()[-1]
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as client,
                client.stream("POST", PATH, json={**BODY, "stream": True}) as answer,
            ):
                pieces = answer.aiter_raw()
                assert await anext(pieces) == unended
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGTERM)  # in a hurry
                assert b"the gateway ends" in b"".join([piece async for piece in pieces])
            assert dict(upstream.sent_headers[0])[b"authorization"] == b"Bearer sk-1"
            _, log = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode == -signal.SIGTERM
            assert b"Traceback" not in log
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
