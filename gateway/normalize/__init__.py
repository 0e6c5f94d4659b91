"""Rules that make prompts that mean the same come out byte-identical."""
