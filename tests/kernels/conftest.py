from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _with_threads(all_cores: None) -> None:
    """Kernels share their work out to as many threads as there are cores."""
