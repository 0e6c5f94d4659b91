"""Bytes of a token by format, and the grammar of the layers to skip."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KVCache
from engine.kv_layout import KV_FORMATS, KVLayout, check_skip_layers, format_layers, parse_skip_layers
from kernels.quant import SERVED_FORMATS


def layout(kind: str = "auto", *, head_dim: int = 64, skipped: frozenset[int] = frozenset(), **changes) -> KVLayout:
    return KVLayout(6, 3, head_dim, kind, skipped, **changes)


def test_formats_are_those_of_the_kernels():
    assert KV_FORMATS == SERVED_FORMATS


@pytest.mark.parametrize("kind", KV_FORMATS)
@pytest.mark.parametrize("block_size", [8, 64], ids=["block8", "block64"])
@pytest.mark.parametrize("head_dim", [64, 128], ids=["D64", "D128"])
def test_allocation_takes_the_bytes_that_the_layout_says(kind, block_size, head_dim):
    shape = layout(kind, head_dim=head_dim, skipped=frozenset({0, 5}), block_size=block_size)
    cache = KVCache.allocate(shape, num_blocks=5, dtype=torch.bfloat16, device=torch.device("cpu"), num_open=3)
    assert cache.num_bytes == 5 * shape.block_bytes + 3 * shape.open_block_bytes
    assert shape.bytes_per_token * block_size == shape.block_bytes


@pytest.mark.parametrize(("head_dim", "most"), [(64, 0.53), (128, 0.52)], ids=["D64", "D128"])
@pytest.mark.parametrize("kind", ["int8/per_token", "int8/hadamard"])
def test_int8_takes_little_more_than_half_of_16_bits(kind, head_dim, most):
    caches = [
        KVCache.allocate(layout(k, head_dim=head_dim), num_blocks=4, dtype=torch.bfloat16, device=torch.device("cpu"))
        for k in (kind, "auto")
    ]
    assert caches[0].num_bytes <= most * caches[1].num_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", set()),
        ("0,5", {0, 5}),
        ("first:1,last:2", {0, 4, 5}),
        ("first:2, 3", {0, 1, 3}),
        ("last:6", {0, 1, 2, 3, 4, 5}),
        ("first:0", set()),
    ],
)
def test_skip_layers_are_read(text, expected):
    assert parse_skip_layers(text, num_layers=6) == expected
    check_skip_layers(text)


@pytest.mark.parametrize("text", ["6", "last:7", "0,0,99"])
def test_skip_layers_that_the_model_does_not_have_are_refused(text):
    with pytest.raises(ValueError, match=r"kv_skip_layers: got .*the model has 6 layers"):
        parse_skip_layers(text, num_layers=6)


@pytest.mark.parametrize("text", ["", "first", "-1", "1;2", "auto,1", "middle:1"])
def test_skip_layers_of_another_form_are_refused(text):
    with pytest.raises(ValueError, match=r"kv_skip_layers: got .* wanted none, auto, or a list"):
        check_skip_layers(text)


def test_skip_layers_are_written_as_they_are_read():
    layers = frozenset({11, 0, 3})
    assert format_layers(layers) == "0,3,11"
    assert parse_skip_layers(format_layers(layers), num_layers=12) == layers
    assert format_layers(frozenset()) == "none"


@pytest.mark.parametrize(
    ("kind", "head_dim", "message"),
    [
        ("int8", 64, "got 'int8', wanted one of auto"),
        ("int8/per_group_32", 80, "does not divide a head of 80"),
        ("int8/hadamard", 24, "multiple of 16, not 24"),
    ],
)
def test_formats_that_do_not_fit_are_refused(kind, head_dim, message):
    with pytest.raises(ValueError, match=message):
        layout(kind, head_dim=head_dim)


def test_a_group_of_a_whole_head_is_per_token():
    assert layout("int8/per_group_64").block_bytes == layout("int8/per_token").block_bytes


def test_formula_names_both_kinds_of_layers():
    assert layout("int8/per_token", skipped=frozenset({1})).formula() == (
        "1 layers x 3 KV heads x 2 (K, V) x 64 channels x 2 bytes + "
        "5 layers x 3 KV heads x (4 bytes of scales + 2 (K, V) x 64 codes) = 2,748 bytes a token"
    )
