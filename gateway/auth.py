"""Who is asking. Knows keys and tenants, nothing of what is asked for."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from pydantic import SecretStr

from gateway.errors import AdminDisabledError, AuthenticationError, ModelNotAllowedError, shown


@dataclass(frozen=True, slots=True)
class Identity:
    """The tenant on whose behalf a request runs."""

    tenant: str
    """An id, never empty."""
    key_id: str | None = None
    """The key that came; None: none was needed."""
    models: frozenset[str] | None = None
    """The only models that the key may use; None: all."""
    salt: str | None = None
    """Apart from the rest of the tenant; None: together with it."""

    @property
    def scope(self) -> str:
        """Who may see the KV of this tenant's prompts, as a field of the namespace."""
        own = f"tenant:{self.tenant}"
        return own if self.salt is None else f"{own};salt:{sha256(self.salt.encode()).hexdigest()}"

    def check_model(self, name: str) -> None:
        """Let a request for a model pass.

        Raises: ModelNotAllowedError: the key is for others.
        """
        if self.models is not None and name not in self.models:
            raise ModelNotAllowedError(
                f"model: got {shown(name)}, wanted one of those that this API key may use: {', '.join(sorted(self.models))}",
                param="model",
            )


_ONLY_USER = Identity(tenant="default")
"""Whoever uses a server without keys."""


class KeyStore(Protocol):
    """Where API keys are known. Both calls are made for every request and must not wait."""

    def has_keys(self) -> bool:
        """Whether any key exists; then every request needs one."""
        ...

    def identify(self, key: str) -> Identity | None:
        """Find the owner of a key; None: no such key."""
        ...


class NoKeys:
    """A server without API keys."""

    def has_keys(self) -> bool:
        """No."""
        return False

    def identify(self, key: str) -> Identity | None:  # noqa: ARG002 -- the protocol's signature
        """Nobody's."""
        return None


class Authenticator:
    """Decides for whom `/v1` works, and whether `/admin` does."""

    def __init__(self, keys: KeyStore, *, host: str, admin_key: SecretStr | None) -> None:
        self._keys = keys
        self._is_loopback = is_loopback(host)
        self._admin_key = admin_key.get_secret_value().encode() if admin_key else b""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Resolve the headers of a `/v1` request: `authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's SDK.

        Raises: AuthenticationError: a key is needed, and none or a wrong one came.
        """
        if not self._keys.has_keys():
            if self._is_loopback:
                return _ONLY_USER
            raise AuthenticationError(
                "this server listens on a public address and has no API keys, so it answers nobody: "
                "make one through /admin/v1/keys, or serve on --host 127.0.0.1 to work without keys"
            )
        key = _bearer(headers.get("authorization")) or headers.get("x-api-key", "").strip()
        identity = self._keys.identify(key) if key else None
        if identity is None:
            raise AuthenticationError(
                "the API key is missing, wrong, expired or revoked; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            )
        return identity

    def check_admin(self, authorization: str | None) -> None:
        """Let the operator pass.

        Raises: AdminDisabledError: no admin key is set; AuthenticationError: another key came, or none.
        """
        self.check_admin_enabled()
        if not self.is_admin_key(_bearer(authorization)):
            raise AuthenticationError("the admin key is missing or wrong; send it as 'Authorization: Bearer KEY'")

    @property
    def is_admin_enabled(self) -> bool:
        """Whether there is an operator."""
        return bool(self._admin_key)

    def check_admin_enabled(self) -> None:
        """Go on where there is an operator.

        Raises: AdminDisabledError: no admin key is set.
        """
        if not self._admin_key:
            raise AdminDisabledError("the admin API is off; set PREFIXGATE_ADMIN_KEY and restart to turn it on")

    def is_admin_key(self, key: str) -> bool:
        """Whether it is the operator's, found out in a time that tells nothing of how much of it is right."""
        return bool(self._admin_key) and hmac.compare_digest(key.encode(), self._admin_key)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address that is listened on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer(authorization: str | None) -> str:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
