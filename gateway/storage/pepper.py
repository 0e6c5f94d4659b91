"""The secret under which API keys are hashed: whoever copies the database still cannot test a guess.

Keys have 256 random bits, so one fast HMAC is enough; slow hashes are for what people think up.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import func, select, update

from gateway.storage.database import Database
from gateway.storage.opening import DatabaseSetupError
from gateway.storage.tables import KEYS, STATE

_CHECKED_TEXT = "prefixgate pepper check"


class Pepper:
    """Hashes keys."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def digest(self, key: str) -> str:
        """HMAC-SHA256 of a key, in 64 hexadecimal digits.

        Source: RFC 2104.
        """
        return hmac.digest(self._secret, key.encode(), hashlib.sha256).hex()

    @property
    def check(self) -> str:
        """What a database remembers to know this pepper again."""
        return self.digest(_CHECKED_TEXT)


def load_pepper(given: SecretStr | None, database: Database) -> Pepper:
    """Take the pepper that was given; for SQLite else that of the file beside it, which is made when missing.

    Raises: DatabaseSetupError: there is none, or others may read the file.
    """
    if given is not None:
        return Pepper(given.get_secret_value())
    if not database.is_sqlite:
        raise DatabaseSetupError(
            "PREFIXGATE_PEPPER is missing: with PostgreSQL every gateway needs the same one, for the keys of all are "
            "hashed with it. Make one, once, with: openssl rand -hex 32"
        )
    path = Path(f"{database.place}.pepper")
    try:
        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise DatabaseSetupError(f"{path}: others may read it; run: chmod 600 {path}")
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseSetupError(f"{path}: cannot be read or made: {error}") from error
    if not secret:
        raise DatabaseSetupError(f"{path}: it is empty; restore it, or delete it and make new API keys")
    return Pepper(secret)


async def check_pepper(pepper: Pepper, database: Database) -> None:
    """Refuse a pepper under which no key of this database would ever be found.

    Raises: DatabaseSetupError: it is another; StorageUnavailableError: the database does not answer.
    """
    async with database.write() as connection:
        known = (await connection.execute(select(STATE.c.pepper_check))).scalar_one()
        if known == pepper.check:
            return
        if (await connection.execute(select(func.count()).select_from(KEYS))).scalar_one():
            raise DatabaseSetupError(
                f"the pepper is not the one that the API keys in {database.place} were made with, so none would work: "
                f"set PREFIXGATE_PEPPER, or restore the file beside a SQLite database, as it was"
            )
        await connection.execute(update(STATE).values(pepper_check=pepper.check))


def _make(path: Path) -> None:
    """Write the whole file or none, also when two gateways start at once: the first one's stays."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
