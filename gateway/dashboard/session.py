"""Who is logged in: signed tokens that hold their own end, so that no gateway need remember them."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SecretStr

COOKIE = "prefixgate_session"
SESSION_SECONDS = 12 * 3600
"""A day's work; a cookie that is stolen is of use no longer."""

_PURPOSE = b"prefixgate dashboard session"
_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Session:
    """One operator, logged in."""

    expires_at: int
    """Seconds since 1970."""
    nonce: str
    """Its name, of no use without the signature."""


class Sessions:
    """Makes and reads the tokens of one admin key: another key ends all sessions.

    Source: RFC 2104 (HMAC). The key is not the admin key itself but derived from it, for this purpose alone.
    """

    def __init__(self, admin_key: SecretStr | None, *, clock: Callable[[], float] = time.time) -> None:
        secret = admin_key.get_secret_value().encode() if admin_key else os.urandom(32)
        self._key = hmac.digest(secret, _PURPOSE, "sha256")
        self._clock = clock
        self._revoked: dict[str, int] = {}  # nonce -> when it would have expired

    def open(self) -> Session:
        """Begin a session."""
        return Session(int(self._clock()) + SESSION_SECONDS, os.urandom(_NONCE_BYTES).hex())

    def token(self, session: Session) -> str:
        """Print what the browser shows from now on: end, nonce and signature."""
        payload = f"{session.expires_at}.{session.nonce}"
        return f"{payload}.{self._signature(payload)}"

    def read(self, token: str) -> Session | None:
        """Find the session of a token; None: forged, of another admin key, over, or logged out."""
        payload, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(payload).encode()):
            return None
        expires_at, _, nonce = payload.partition(".")  # signed, so it is one of ours
        session = Session(int(expires_at), nonce)
        return None if session.expires_at <= self._clock() or nonce in self._revoked else session

    def revoke(self, session: Session) -> None:
        """End a session before its time, for as long as this process lives."""
        now = self._clock()
        self._revoked = {nonce: end for nonce, end in self._revoked.items() if end > now}
        self._revoked[session.nonce] = session.expires_at

    def _signature(self, payload: str) -> str:
        return hmac.digest(self._key, payload.encode(), "sha256").hex()
