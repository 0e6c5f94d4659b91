"""The providers' SDKs against the real model."""

from __future__ import annotations

import pytest

from tests.support.real_model import MODEL
from tests.support.sdk_suite import Check, checks_for
from tests.support.served import Part, Served
from tests.support.server import Server

pytestmark = pytest.mark.model


@pytest.mark.parametrize("check", checks_for(*set(Part) - {Part.KEYS}))
def test_sdk(check: Check, server: Server) -> None:
    check(Served(server.url, MODEL))
