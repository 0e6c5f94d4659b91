"""The fused kernels of int8 products against their torch reference, and products against integers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.weight_format import cpu_has_int8
from kernels import int8 as spec
from kernels.cpu import int8 as fused
from kernels.cpu import int8_layer as layer_kernels
from kernels.cpu import product

needs_int8 = pytest.mark.skipif(not cpu_has_int8(), reason="this processor has no int8 products")
EPS = 1e-5
SIZES = [(48, 80), (64, 96), (576, 1536)]  # hidden and intermediate: rotations of 16 to 512 channels


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def empty(num_rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((num_rows, size), np.uint8), np.empty(num_rows, np.float32)


def assert_rows(got: tuple[np.ndarray, np.ndarray], expected: spec.Rows) -> None:
    """Scales to the last bits; codes but for numbers that lie half way between two."""
    codes, scales = got
    np.testing.assert_allclose(scales, expected[1].numpy(), rtol=3e-6)
    off = np.abs(codes.astype(np.int64) - 128 - expected[0].numpy())
    assert off.max(initial=0) <= 1
    assert (off > 0).mean() < 0.005


def sums_of(num_rows: int, num_columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """int32 sums, row scales, column scales and a bias, as a product leaves them."""
    sums = rand(num_rows, num_columns, seed=1, scale=30_000).int()
    return sums, rand(num_rows, seed=2).abs() * 1e-2, rand(num_columns, seed=3).abs() * 1e-2, rand(num_columns, seed=4)


@pytest.mark.parametrize(("hidden", "inner"), SIZES)
def test_fused_kernels_follow_the_reference(hidden: int, inner: int) -> None:
    num_rows = 9
    x = rand(num_rows, hidden) * torch.logspace(-3, 3, hidden)  # channels that stand out
    got = empty(num_rows, hidden)
    fused.quantize(0, num_rows, x.numpy(), *got)
    assert_rows(got, spec.quantize(x))
    fused.norm_quantize(0, num_rows, x.numpy(), EPS, *got)
    assert_rows(got, spec.norm_quantize(x, EPS))

    weight, hartley = rand(hidden, seed=5), spec.hartley(hidden // spec.rotation_width(hidden))
    fused.head_quantize(0, num_rows, x.numpy(), weight.numpy(), EPS, hartley.numpy(), *got)
    assert_rows(got, spec.head_quantize(x, weight, EPS))

    parts = sums_of(num_rows, hidden)
    residual = x.clone()
    fused.add_norm_quantize(0, num_rows, *(part.numpy() for part in parts), EPS, residual.numpy(), *got)
    torch.testing.assert_close(residual, x + spec.dequantize(*parts))
    assert_rows(got, spec.norm_quantize(residual, EPS))

    parts, got = sums_of(num_rows, 2 * inner), empty(num_rows, inner)
    width = spec.rotation_width(inner)
    fused.silu_quantize(0, num_rows, *(part.numpy() for part in parts), width, *got)
    assert_rows(got, spec.silu_quantize(spec.dequantize(*parts), width))


@needs_int8
@given(
    num_rows=st.integers(1, 20), num_columns=st.integers(1, 200), fours=st.integers(1, 40), seed=st.integers(0, 1000)
)
@settings(max_examples=30, deadline=None)
def test_products_are_exact(num_rows: int, num_columns: int, fours: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # extremes too: 16-bit partial sums would overflow
    codes = rng.choice([-127, -1, 0, 5, 127], (num_rows, 4 * fours))
    weight = rng.choice([-127, -3, 0, 1, 127], (num_columns, 4 * fours)).astype(np.int8)
    packed, offsets = product.pack(weight)
    out = np.full((num_rows, len(offsets)), 7, np.int32)
    product.multiply(0, len(offsets) // 16, (codes + 128).astype(np.uint8), packed, offsets, out)
    np.testing.assert_array_equal(out[:, :num_columns], codes @ weight.astype(np.int64).T)


@needs_int8
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 2, 13])
def test_a_layer_follows_the_reference(num_threads: int, num_rows: int) -> None:
    hidden, inner, q_size, qkv_size = 48, 80, 96, 160
    attention, residual = rand(num_rows, q_size), rand(num_rows, hidden, seed=1)
    shapes = {"o": (hidden, q_size), "gate_up": (2 * inner, hidden), "down": (hidden, inner), "qkv": (qkv_size, hidden)}
    weights = {name: spec.quantize(rand(*shape, seed=len(name), scale=0.2)) for name, shape in shapes.items()}
    biases = {name: rand(shape[0], seed=9) for name, shape in shapes.items()}
    width = spec.rotation_width(inner)

    hidden_1 = residual + spec.linear(spec.quantize(attention), weights["o"], biases["o"])
    gate_up = spec.linear(spec.norm_quantize(hidden_1, EPS), weights["gate_up"], biases["gate_up"])
    hidden_2 = hidden_1 + spec.linear(spec.silu_quantize(gate_up, width), weights["down"], biases["down"])
    expected = spec.linear(spec.norm_quantize(hidden_2, EPS), weights["qkv"], biases["qkv"])

    packed = {
        name: (*product.pack(codes.numpy()), scales.numpy(), biases[name].numpy())
        for name, (codes, scales) in weights.items()
    }
    to_hidden, to_inner, to_qkv = (np.empty((num_rows, size), np.int32) for size in (hidden, 2 * inner, qkv_size))
    heads = np.empty((num_rows, qkv_size), np.float32)
    buffers = empty(num_rows, q_size), empty(num_rows, hidden), empty(num_rows, inner)
    arguments = (
        *(attention.numpy(), residual.numpy(), EPS, width, *buffers),
        *(packed[name] for name in shapes),
        *(to_hidden, to_inner, to_qkv, heads, True),
    )
    in_threads(layer_kernels.advance, num_threads, *arguments)
    # a code that is a neighbour moves a product a little
    torch.testing.assert_close(residual, hidden_2, rtol=0, atol=0.02)
    torch.testing.assert_close(torch.from_numpy(heads), expected, rtol=0, atol=0.05)


def test_a_value_that_is_not_finite_spoils_its_row_alone() -> None:
    x = rand(3, 64)
    x[1, 5] = torch.nan
    codes, scales = empty(3, 64)
    fused.norm_quantize(0, 3, x.numpy(), EPS, codes, scales)
    assert np.isfinite(scales).tolist() == [True, False, True]
    fused.quantize(0, 3, torch.zeros(3, 64).numpy(), codes, scales)
    assert (codes == 128).all()
    assert (scales > 0).all()


@pytest.mark.parametrize("size", [16, 48, 80, 576, 896])
def test_rotations_are_their_own_inverse_and_keep_lengths(size: int) -> None:
    x = rand(5, size).double()
    width = spec.rotation_width(size)
    for turn in (lambda y: spec.rotate(y, width), spec.spread):
        torch.testing.assert_close(turn(turn(x)), x, rtol=0, atol=1e-5)
        torch.testing.assert_close(turn(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    one = torch.zeros(1, size, dtype=torch.float64)
    one[0, 3] = 1.0
    assert spec.spread(one).abs().max() < 2.1 * size**-0.5 * 2**0.5  # no channel keeps what one had
    assert int((spec.rotate(one, width) != 0).sum()) == width


def in_threads(kernel, num_threads: int, *arguments) -> None:
    counter = np.zeros(1, np.int64)
    threads = [
        threading.Thread(target=kernel, args=(thread, num_threads, counter, *arguments))
        for thread in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
