"""Calls of tools, and thoughts, in what a model writes; and what a client wants of them."""
