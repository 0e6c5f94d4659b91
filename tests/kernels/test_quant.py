"""The rounding rule, the rotation, and numba's conversions against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numba import njit

from kernels.cpu import numerics
from kernels.quant import MIN_SCALE, SERVED_FORMATS, dequantize, hadamard, parse_kv_format, quantize

HEADS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.sampled_from([32, 64])),
    elements=st.floats(-8e6, 8e6, width=32, allow_subnormal=True),
)


@settings(deadline=None)
@given(HEADS, st.sampled_from([1, 2]))
def test_a_value_comes_back_within_half_a_scale(heads, num_groups):
    x = torch.from_numpy(heads)
    codes, scales = quantize(x, num_groups)
    assert codes.abs().max() <= 127
    assert (scales.float() >= MIN_SCALE).all()
    half = (scales.float() / 2).repeat_interleave(x.shape[-1] // num_groups, dim=-1)
    # a scale rounded down in fp16 clamps the largest: 127 * (absmax / 127 - scale), at most 127 half units of the scale
    clamped = codes.abs() == 127
    unit = torch.maximum(half * 2 * 2**-11, torch.tensor(2.0**-25))
    slack = torch.where(clamped, 127 * unit, 0.0)
    error = (dequantize(codes, scales) - x).abs()
    assert (error <= half * (1 + 2**-20) + slack).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-30])
def test_rows_that_round_to_zero_have_the_smallest_scale(value):
    codes, scales = quantize(torch.full((2, 64), value))
    assert not codes.any()
    assert (scales == MIN_SCALE).all()


def test_a_constant_row_is_all_127():
    codes, scales = quantize(torch.full((1, 64), -3.0))
    assert (codes == -127).all()
    assert scales.item() == np.float16(np.float32(3) / np.float32(127))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
def test_the_rotation_is_its_own_inverse_and_spreads_an_outlier(head_dim):
    matrix = hadamard(head_dim)
    torch.testing.assert_close(matrix @ matrix, torch.eye(head_dim))
    one_hot = torch.zeros(head_dim)
    one_hot[3] = 1.0
    block = head_dim & -head_dim
    assert (one_hot @ matrix).abs().max() == pytest.approx(block**-0.5)
    with pytest.raises(ValueError, match="head_dim"):
        hadamard(24)


def test_the_grammar_of_formats():
    assert [parse_kv_format(name).name for name in SERVED_FORMATS] == list(SERVED_FORMATS)
    assert parse_kv_format("int8/per_group_64").num_groups(128) == 2
    assert parse_kv_format("int8/per_group_128").num_groups(64) == 1
    with pytest.raises(ValueError, match="does not divide"):
        parse_kv_format("int8/per_group_32").num_groups(80)
    with pytest.raises(ValueError, match="int8/hadamard"):
        parse_kv_format("int8")


@njit
def _scales_round_trip(bits, floats):
    wrong = 0
    for index in range(len(bits)):
        wrong += numerics.half_to_float(bits[index]) != floats[index]
        wrong += numerics.float_to_half(floats[index]) != bits[index]
    return wrong


@njit
def _to_half(floats, out):
    for index in range(len(floats)):
        out[index] = numerics.float_to_half(floats[index])


@njit
def _narrow(floats, out):
    for index in range(len(floats)):
        out[index] = numerics.narrow(floats[index], out)


@njit
def _widen(elements, out):
    for index in range(len(elements)):
        out[index] = numerics.widen(elements[index])


@njit
def _exp2(x, out):
    for index in range(len(x)):
        out[index] = numerics.exp2(x[index])


def test_every_positive_fp16_survives_the_way_through_fp32():
    bits = np.arange(1, 0x7C00, dtype=np.uint16)
    assert _scales_round_trip(bits, bits.view(np.float16).astype(np.float32)) == 0


def test_scales_round_as_numpy_rounds():
    middles = np.arange(0, 0x7BFF, dtype=np.uint16)
    ties = (middles.view(np.float16).astype(np.float64) + (middles + 1).view(np.float16).astype(np.float64)) / 2
    floats = ties.astype(np.float32)
    floats = np.concatenate([floats, np.nextafter(floats, np.float32(0)), np.nextafter(floats, np.float32(1e9))])
    out = np.empty(len(floats), np.uint16)
    _to_half(floats, out)
    assert (out == floats.astype(np.float16).view(np.uint16)).all()


@pytest.mark.parametrize(("dtype", "carrier"), [(torch.bfloat16, np.uint16), (torch.float16, np.int16)])
def test_floats_of_16_bits_are_torchs(dtype, carrier):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    wanted = bits.view(dtype).float().numpy()
    got = np.empty(len(wanted), np.float32)
    _widen(bits.numpy().view(carrier), got)
    np.testing.assert_array_equal(got, wanted)
    floats = torch.cat((torch.randn(50_000) * 10 ** torch.randn(50_000), torch.from_numpy(wanted)))
    out = np.empty(len(floats), carrier)
    _narrow(floats.numpy(), out)
    again = torch.from_numpy(out.view(np.int16)).view(dtype)
    torch.testing.assert_close(again, floats.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_exp2_is_within_its_bound():
    x = -np.concatenate([np.linspace(0, 126, 100_001), [0.5, 1.5, 126.0]]).astype(np.float32)
    out = np.empty_like(x)
    _exp2(x, out)
    assert (np.abs(out / np.exp2(x.astype(np.float64)) - 1) < 3e-7).all()
    edge = np.array([-np.inf, -1e9, np.nan], np.float32)
    out = np.empty_like(edge)
    _exp2(edge, out)
    assert out[:2].max() <= 2.0**-126
    assert np.isnan(out[2])
