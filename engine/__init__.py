"""The engine: runs a language model on a paged KV cache. Importing this package loads no torch."""
