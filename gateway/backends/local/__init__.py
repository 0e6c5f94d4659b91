"""Our own engine as a backend: a supervised worker process on this machine.

The only package of the gateway that imports `engine`, and of it only what loads no torch.
"""

from gateway.backends.local.backend import LocalBackend, Supervision
from gateway.backends.local.models import local_backend, resolve_model

__all__ = ["LocalBackend", "Supervision", "local_backend", "resolve_model"]
