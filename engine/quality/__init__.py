"""What a format of the KV cache costs in answers: measured through the model, the cache and the kernels that serve."""
