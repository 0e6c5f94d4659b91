"""Structured output: what a client asks an answer to look like becomes a grammar for the engine.

Loads no llguidance: the text of a grammar is written here, and read where the model is.
"""
