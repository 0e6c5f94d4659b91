from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.storage.audit import Author
from gateway.storage.database import Database
from gateway.storage.opening import DatabaseSetupError, open_database
from gateway.storage.pepper import Pepper, check_pepper, load_pepper
from gateway.storage.store import Store

SECRET = SecretStr("a pepper of some length")


def test_digest_is_that_of_rfc_4231() -> None:
    """Test case 2 of HMAC-SHA256."""
    digest = Pepper("Jefe").digest("what do ya want for nothing?")
    assert digest == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"


def test_pepper_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path}/x.db", create=True)
    first = load_pepper(None, database)
    file = tmp_path / "x.db.pepper"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "x.db").stat().st_mode) == 0o600
    assert load_pepper(None, database).check == first.check
    assert load_pepper(SECRET, database).check != first.check
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db", "x.db.pepper"]
    file.chmod(0o640)
    with pytest.raises(DatabaseSetupError, match="chmod 600"):
        load_pepper(None, database)
    file.chmod(0o600)
    file.write_text("")
    with pytest.raises(DatabaseSetupError, match="it is empty"):
        load_pepper(None, database)


def test_postgresql_needs_a_pepper_from_outside() -> None:
    with pytest.raises(DatabaseSetupError, match="PREFIXGATE_PEPPER is missing"):
        load_pepper(None, Database("postgresql+psycopg://h/x"))


async def test_another_pepper_is_refused_once_a_key_exists(database: Database) -> None:
    first, second = Pepper("first"), Pepper("second")
    for pepper in (first, second, first, first):
        await check_pepper(pepper, database)
    await Store(database, first).keys.create(Author("test"), "default")
    await check_pepper(first, database)
    with pytest.raises(DatabaseSetupError, match="not the one that the API keys"):
        await check_pepper(second, database)
