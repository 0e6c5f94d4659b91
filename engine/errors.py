"""Everything the engine raises on purpose.

EngineError
├── ConfigError          an option that cannot work with this model or machine
├── ModelNotFoundError   no such alias, folder or hub id
├── ModelLoadError       the files are there, but wrong: hash, keys, shapes, an unknown architecture
└── InvalidRequestError  one request is at fault; carries the field's name
"""

from __future__ import annotations

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # torch on CUDA, torch on the CPU


class EngineError(Exception):
    """Base of all errors of the engine."""


class ConfigError(EngineError):
    """An option cannot work with this model or on this machine."""


class ModelNotFoundError(EngineError):
    """The model is no known alias, no local folder and no hub id that can be reached."""


class ModelLoadError(EngineError):
    """The model's files are incomplete, altered, or of an architecture that is not supported."""


class InvalidRequestError(EngineError):
    """One request cannot be served; `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether memory was short, of Python, the CPU or the GPU. Knows torch by its words, to load without it."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in words for phrase in _OUT_OF_MEMORY)
    )
