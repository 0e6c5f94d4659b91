"""Tensor kernels over the paged KV cache. Knows tensors, never requests."""
