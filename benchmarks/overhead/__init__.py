"""What `benchmarks.gateway` starts and drives: servers that answer at once, and a client that costs next to nothing."""
