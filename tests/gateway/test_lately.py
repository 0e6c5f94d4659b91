"""What grew lately, where an engine now and then does not answer."""

from __future__ import annotations

from gateway.lately import Lately, Sample


def test_look_that_failed_makes_nothing_grow_and_ends_no_wait() -> None:
    lately = Lately()
    lately.note(Sample(0.0, {"answers": 1}, None))
    lately.note(Sample(5.0, {"answers": 2, "copies": 70}, 3))
    lately.note(Sample(10.0, {"answers": 3}, None))
    now = Sample(15.0, {"answers": 4, "copies": 71}, 2)
    assert lately.growth(now) == {"answers": 3, "copies": 1}
    assert lately.waiting_seconds(now) == 15.0
    assert lately.waiting_seconds(Sample(15.0, {}, 0)) == 0.0
