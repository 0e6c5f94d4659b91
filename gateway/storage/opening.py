"""Opens the database that an operator names, or says in a sentence why it cannot be."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import ArgumentError

from gateway.storage.database import Database


class DatabaseSetupError(Exception):
    """The database cannot be opened as it was named."""


def open_database(url: str, *, create: bool) -> Database:
    """Open a database.

    Args:
        url: as `--db` takes it.
        create: make the file of a SQLite database, and its folder, readable by nobody else.

    Raises: DatabaseSetupError: what is wrong with the URL, the folder or this installation.
    """
    try:
        database = Database(url)
    except ArgumentError as error:
        raise DatabaseSetupError(f"--db: {error}") from error
    except ModuleNotFoundError as error:
        raise DatabaseSetupError(
            f"--db names PostgreSQL and the package {error.name} is missing: install prefixgate with its extra `postgres`"
        ) from error
    if database.is_sqlite and create:
        file = Path(database.place)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
        except OSError as error:
            raise DatabaseSetupError(f"{file} cannot be made: {error.strerror}; --db names another") from error
    return database
