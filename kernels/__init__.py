"""Tensor kernels over the paged KV cache. Knows tensors, never requests, block owners or HTTP.

`ops` is the public face; `reference` is the readable spec that every backend agrees with.
"""
