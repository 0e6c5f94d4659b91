from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.whole_events import WholeEvents
from tests.gateway.upstream.mock import STREAM


@given(
    st.lists(st.integers(0, len(STREAM))), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.integers(0, 60), st.booleans()
)
def test_all_bytes_go_on_and_no_event_before_its_end(cuts: list[int], end: bytes, num_cut: int, by_bytes: bool) -> None:
    stream = STREAM.replace(b"\n", end)
    stream = stream[: len(stream) - num_cut]
    places = range(len(stream) + 1) if by_bytes else sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    events, passed = WholeEvents(), b""
    for start, stop in pairwise(places):
        passed += events.feed(stream[start:stop])
        # The reference: everything up to the last empty line.
        last = stream[:stop].rfind(end * 2)
        assert passed == (b"" if last < 0 else stream[: last + 2 * len(end)])
        assert events.is_at_border
    assert passed + events.end(b"x") == stream + b"x"
