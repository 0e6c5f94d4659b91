"""The gateway in front of an engine that is not ours."""
