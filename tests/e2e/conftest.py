"""One server on the real model for all end-to-end tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(["--tool-template", "hermes"]) as running:
        yield running
