"""The histogram of the time between tokens: it shows what the library's own one would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.token_seconds import TokenSeconds

BOUNDS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)


@given(st.lists(st.one_of(st.floats(0, 5), st.sampled_from(BOUNDS)), max_size=20))
def test_it_shows_what_the_librarys_histogram_shows(values: list[float]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    seconds = TokenSeconds()
    own.register(seconds)
    reference = Histogram(
        "prefixgate_inter_token_seconds",
        "Time per token after the first, once for each batch of tokens",
        buckets=BOUNDS,
        registry=theirs,
    )
    for value in values:
        seconds.observe(value)
        reference.observe(value)
    assert shown(own) == shown(theirs)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)
