"""Histograms that cost little: they show what the library's own would, and their quantiles are where the values are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as LibraryHistogram

from gateway.first_tokens import FIRST_TOKEN_SECONDS, bucket_name, counts_by_bucket, summary
from gateway.histogram import Buckets, Histogram, LabelledHistogram, quantile

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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 5)), max_size=20))
def test_with_a_label_it_shows_what_the_librarys_histogram_shows(values: list[tuple[str, float]]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    own = LabelledHistogram("s", "What", label="kind", values="ab", buckets=BOUNDS, registry=registries[0])
    theirs = LibraryHistogram("s", "What", ("kind",), buckets=BOUNDS, registry=registries[1])
    for label in "ab":
        theirs.labels(label)
    for label, value in values:
        own.labels(label).observe(value)
        theirs.labels(label).observe(value)
    assert shown(registries[0]) == shown(registries[1])


@given(st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any), st.floats(0, 1), st.floats(0, 1))
def test_so_many_values_lie_below_a_quantile_as_it_says(counts: list[int], q: float, other: float) -> None:
    found = quantile(BOUNDS, counts, q)
    assert found is not None
    lows = (0.0, *BOUNDS[:-1])
    shares = [min(max((found - low) / (high - low), 0.0), 1.0) for low, high in zip(lows, BOUNDS, strict=True)]
    below = sum(share * count for share, count in zip(shares, counts[:-1], strict=True))
    assert below == pytest.approx(min(q * sum(counts), sum(counts[:-1])), abs=1e-9)
    assert found == BOUNDS[-1] or found < BOUNDS[-1]
    assert (quantile(BOUNDS, counts, min(q, other)) or 0) <= (quantile(BOUNDS, counts, max(q, other)) or 0)


def test_quantiles_lie_within_the_buckets_of_their_values() -> None:
    assert quantile(BOUNDS, [0] * 5, 0.5) is None
    assert quantile(BOUNDS, [0, 0, 4, 0, 0], 0.5) == 0.75
    assert quantile(BOUNDS, [0, 0, 1, 0, 3], 0.5) == 3.0
    assert quantile(BOUNDS, [2, 0, 0, 2, 0], 0.75) == 2.0


@given(st.lists(st.floats(0, 100), max_size=30))
def test_times_that_were_stored_by_the_names_of_buckets_are_those_that_were_observed(values: list[float]) -> None:
    observed, stored = Buckets(FIRST_TOKEN_SECONDS), Counter(map(bucket_name, values))
    for value in values:
        observed.observe(value)
    assert counts_by_bucket(stored) == observed.counts
    assert summary(observed.counts)["count"] == len(values)


def test_a_bound_of_another_version_counts_for_the_next_higher_one() -> None:
    counts = counts_by_bucket({"0.55": 2, "0.6": 1, "+Inf": 1})
    assert dict(zip(FIRST_TOKEN_SECONDS, counts, strict=False))[0.6] == 3
    assert (counts[-1], sum(counts)) == (1, 4)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)
