"""The providers' SDKs against an echo engine, behind API keys and limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.model_files import ModelFiles
from tests.gateway.support.echo_server import echo_server
from tests.support.sdk_suite import Check, checks_for
from tests.support.served import Part, Served


@pytest.fixture(scope="module")
def served(model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with echo_server(model_files, tmp_path_factory.mktemp("echo")) as server:
        yield Served(
            server.url,
            model_files.name,
            api_key=server.new_key("everyone"),
            limited_key=server.new_key("limited", requests_per_minute=1),
            say=server.say,
        )


@pytest.mark.parametrize("check", checks_for(*Part))
def test_sdk(check: Check, served: Served) -> None:
    check(served)
