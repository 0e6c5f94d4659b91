from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numba", "triton")


@pytest.mark.parametrize(
    "module",
    ["gateway.app", "gateway.upstream.app", "gateway.commands.serve", "gateway.commands.prompts", "gateway.__main__"],
)
def test_gateway_loads_no_engine_libraries(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
