from __future__ import annotations

import pytest

from gateway.context.policy import policy_of
from gateway.errors import InvalidRequestError


@pytest.mark.parametrize("seconds", [0, -1, 601, "20", True, float("nan")])
def test_time_for_a_summary_is_bounded(seconds: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"params\.summary_timeout_seconds: got .* above 0 and at most 600"):
        policy_of({"summary_timeout_seconds": seconds})


def test_time_for_a_summary_is_seconds() -> None:
    assert policy_of({"summary_timeout_seconds": 3}).summary_timeout_seconds == 3.0
