"""The worker's process, without a gateway."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import zmq

from engine.config import EngineConfig
from engine.messages import GetSnapshot, encode

_PATIENT = """
import sys
import time
from engine import worker
from tests.support.chain_worker import build

worker.HEARTBEAT_SECONDS = 600.0
sys.exit(worker.main(build=build))
"""


def test_idle_worker_ends_in_order_as_soon_as_it_is_told(tmp_path: Path):
    """It waits for messages for as long as no sign of life is due, and would not look up before."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as gateway:
        endpoint = f"ipc://{tmp_path}/0"
        gateway.bind(endpoint)
        command = [sys.executable, "-c", _PATIENT, "--endpoint", endpoint, "--parent", str(os.getpid())]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(EngineConfig(model_path="chain")))
        worker.stdin.close()
        try:
            assert gateway.poll(30_000), "wanted to hear that it is ready"
            sender, _ = gateway.recv_multipart()
            gateway.send_multipart([sender, encode(GetSnapshot(1))])
            assert gateway.poll(30_000), "wanted an answer: now it is in its loop"
            time.sleep(0.5)  # and now it waits
            worker.terminate()
            assert worker.wait(10) == 0
        finally:
            worker.kill()
            worker.wait()
