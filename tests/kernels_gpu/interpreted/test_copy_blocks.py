"""Copies of all layers and tensors in a launch for each row size, as the CPU does them."""

from __future__ import annotations

import pytest
import torch

from kernels import copy_blocks as on_cpu
from kernels.gpu import copy_blocks as on_gpu
from tests.kernels.cases import Shape, clone, make_layer

COPIES = [(0, 1, 5), (1, 2, 8), (3, 3, 8), (3, 0, 0), (2, 5, 1), (5, 1, 8)]
SHAPE = Shape(2, 2, 96, 8, num_blocks=6)


@pytest.mark.parametrize("name", ["auto", "int8/per_token", "int8/per_group_32", "int8/per_channel"])
def test_copy_blocks_does_what_the_cpu_does(name):
    torch.manual_seed(11)
    layers = [make_layer(kind, SHAPE, torch.bfloat16, num_open=6) for kind in (name, name, "auto")]
    expected = [clone(layer) for layer in layers]
    for module, cache in ((on_gpu, layers), (on_cpu, expected)):
        module.copy_blocks([tensor for layer in cache for tensor in layer.tensors], COPIES)
        if opened := [layer.key_open for layer in cache if layer.key_open is not None]:
            module.copy_blocks(opened, [(0, 3, 8), (3, 5, 8)])
    for got, wanted in zip(layers, expected, strict=True):
        for one, other in zip((*got.tensors, got.key_open), (*wanted.tensors, wanted.key_open), strict=True):
            assert one is other or torch.equal(one, other)
