from __future__ import annotations

import pytest

from gateway.limits.headers import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0125, "12ms"),
        (0.9999, "999ms"),
        (1, "1s"),
        (59.6, "1m0s"),
        (360, "6m0s"),
        (3599.9, "1h0m0s"),
        (86400, "24h0m0s"),
    ],
)
def test_duration_is_printed_as_openai_prints_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
