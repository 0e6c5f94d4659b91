"""Triton kernels over the paged KV cache, for NVIDIA GPUs. `plan` is the door; the rest is one kernel family a file."""
