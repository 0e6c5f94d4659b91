"""Copies of all layers and tensors in one launch."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.copy_blocks import copy_blocks
from tests.kernels.cases import Shape, clone, make_layer

COPIES = [(0, 1, 5), (1, 2, 8), (3, 3, 8), (3, 0, 0), (2, 5, 1), (5, 1, 8)]


@pytest.mark.parametrize("name", ["auto", "int8/per_token", "int8/per_group_32", "int8/per_channel"])
def test_copy_blocks_performs_a_chain_in_order_and_leaves_the_tail(name):
    torch.manual_seed(11)
    layers = [make_layer(name, Shape(2, 2, 96, 8, num_blocks=6), torch.bfloat16) for _ in range(2)]
    layers.append(make_layer("auto", Shape(2, 2, 96, 8, num_blocks=6), torch.bfloat16))
    expected = [clone(layer) for layer in layers]
    copy_blocks(layers, COPIES)
    for layer in expected:
        for src, dst, num_tokens in COPIES:
            for tensor in layer.tensors:
                if tensor.dim() == 3:  # a scale a channel, of the whole block
                    tensor[dst] = tensor[src]
                else:
                    tensor[dst, :, :num_tokens] = tensor[src, :, :num_tokens]
    for got, wanted in zip(layers, expected, strict=True):
        for one, other in zip(got.tensors, wanted.tensors, strict=True):
            assert torch.equal(one, other)
