"""The reverse proxy: the normalizer in front of OpenAI-compatible servers that run already. No engine, no torch."""
