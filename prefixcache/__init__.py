"""The prefix cache: which KV block holds which tokens, who refers to it, and what may be reused, copied or evicted.

Plain Python, xxhash and numpy. Knows no tensor, clock, thread or socket.
"""
