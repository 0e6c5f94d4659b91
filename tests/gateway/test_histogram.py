"""The histogram that costs little: it shows what the library's own one would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as LibraryHistogram

from gateway.histogram import Histogram

BOUNDS = (0.001, 0.5, 1.0, 3.0)


@given(st.lists(st.one_of(st.floats(0, 5), st.sampled_from(BOUNDS)), max_size=20))
def test_it_shows_what_the_librarys_histogram_shows(values: list[float]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    own = Histogram("seconds", "What took long", buckets=BOUNDS, registry=registries[0])
    theirs = LibraryHistogram("seconds", "What took long", buckets=BOUNDS, registry=registries[1])
    for value in values:
        own.observe(value)
        theirs.observe(value)
    assert shown(registries[0]) == shown(registries[1])


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)
