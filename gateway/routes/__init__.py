"""Thin endpoints beside the hot path."""
