"""Registered prompts: what an operator wants to stay warm, who uses it, and where live traffic drifts away from it."""
