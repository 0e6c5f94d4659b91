"""Benchmarks. Each prints machine and commit, and medians of one run."""
