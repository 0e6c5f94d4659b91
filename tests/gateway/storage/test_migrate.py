from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from sqlalchemy import inspect, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError

from gateway.commands.db import main
from gateway.errors import StorageUnavailableError
from gateway.storage import migrate
from gateway.storage.database import Database
from gateway.storage.opening import open_database
from gateway.storage.tables import METADATA, STATE, TENANTS


async def table_names(database: Database) -> set[str]:
    async with database.read() as connection:
        return set(await connection.run_sync(lambda c: inspect(c).get_table_names())) - {"alembic_version"}


async def test_up_down_up_leaves_the_tables_that_the_code_expects(url: str) -> None:
    database = Database(url)
    assert (await migrate.revision_of(database)).current is None
    for _ in range(2):
        await migrate.upgrade(database)
        assert await table_names(database) == set(METADATA.tables)
        assert await migrate.differences(database) == []
        assert (await migrate.revision_of(database)).is_head
        await migrate.downgrade(database, "base")
        assert await table_names(database) == set()
    await database.close()


async def test_difference_between_tables_and_code_is_found(database: Database) -> None:
    async with database.write() as connection:
        await connection.exec_driver_sql("ALTER TABLE tenants ADD COLUMN colour TEXT")
        await connection.exec_driver_sql("DROP INDEX ix_keys_tenant_id")
    found = " ".join(await migrate.differences(database))
    assert "colour" in found
    assert "ix_keys_tenant_id" in found


async def test_failed_upgrade_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(url)
    async with database.write() as connection:
        await connection.exec_driver_sql("CREATE TABLE tenants (id TEXT)")  # in the way of ours
    with pytest.raises((ProgrammingError, StorageUnavailableError)):
        await migrate.upgrade(database)
    assert await table_names(database) == {"tenants"}
    assert (await migrate.revision_of(database)).current is None
    await database.close()


async def test_upgrades_at_the_same_time_do_the_work_once(url: str) -> None:
    databases = [Database(url) for _ in range(3)]
    await asyncio.gather(*(migrate.upgrade(database) for database in databases))
    assert await migrate.differences(databases[0]) == []
    for database in databases:
        await database.close()


async def test_prepare_upgrades_sqlite_and_refuses_postgresql(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        await migrate.prepare(database)
    else:
        with pytest.raises(
            migrate.MigrationError, match=r"revision none \(it is empty\), wanted .*prefixgate db upgrade"
        ):
            await migrate.prepare(database)
        await migrate.upgrade(database)
    await migrate.prepare(database)
    assert (await migrate.revision_of(database)).is_head
    await database.close()


async def test_database_of_a_newer_version_is_left_alone(database: Database) -> None:
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for act in (migrate.prepare, migrate.upgrade):
        with pytest.raises(migrate.MigrationError, match="9999, which this version does not know"):
            await act(database)


async def test_write_is_all_or_nothing(database: Database) -> None:
    tenant = {"id": "t1", "name": "acme", "created_at": 0.0}
    with contextlib.suppress(RuntimeError):
        async with database.write() as connection:
            await connection.execute(TENANTS.insert(), tenant)
            raise RuntimeError
    with pytest.raises(IntegrityError):
        async with database.write() as connection:
            await connection.execute(TENANTS.insert(), [tenant, tenant])
    async with database.read() as connection:
        assert (await connection.execute(select(TENANTS.c.id))).scalars().all() == ["default"]


async def test_writers_that_read_first_never_collide(url: str, database: Database) -> None:
    """Two processes' worth of writers: the read before the write is where SQLite's WAL would refuse one of them."""
    databases = [Database(url) for _ in range(2)]

    async def count_up(database: Database) -> None:
        for _ in range(20):
            async with database.write() as connection:
                locked = select(STATE.c.change_counter).with_for_update()
                counter = (await connection.execute(locked)).scalar_one()
                await asyncio.sleep(0)
                await connection.execute(update(STATE).values(change_counter=counter + 1))

    await asyncio.gather(*(count_up(each) for each in databases for _ in range(3)))
    assert await database.change_counter() == 120
    for each in databases:
        await each.close()


async def test_sqlite_file_that_is_deleted_or_damaged_is_gone_and_not_made_anew(tmp_path: Path) -> None:
    database = open_database(f"sqlite+aiosqlite:///{tmp_path}/odd name#%25.db", create=True)
    file = Path(database.place)
    await migrate.upgrade(database)
    kept = file.read_bytes()
    for damage in (file.unlink, lambda: file.write_bytes(b"no database" * 999)):
        damage()
        with pytest.raises(StorageUnavailableError):
            await database.change_counter()
    assert file.read_bytes() != kept
    file.write_bytes(kept)
    assert await database.change_counter() == 0


async def test_database_that_is_not_there_has_one_name(tmp_path: Path) -> None:
    for url in (f"sqlite+aiosqlite:///{tmp_path}/no/folder/x.db", "postgresql+psycopg://u:hush@127.0.0.1:1/x"):
        database = Database(url)
        with pytest.raises(StorageUnavailableError) as caught:
            await database.change_counter()
        assert "hush" not in f"{caught.value} {caught.value.__cause__} {database.place}"
        await database.close()


def test_command_upgrades_shows_and_checks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--db", url]) == 1
    assert "got revision none" in capsys.readouterr().err
    assert main(["upgrade", "--db", url]) == 0
    assert "from nothing to 0" in capsys.readouterr().out
    assert main(["current", "--db", url]) == 0
    assert "(the newest)" in capsys.readouterr().out
    assert main(["check", "--db", url]) == 0
    assert "as it should be" in capsys.readouterr().out


def test_command_finds_the_database_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFIXGATE_DB", f"sqlite+aiosqlite:///{tmp_path}/deep/down/x.db")
    assert main(["upgrade"]) == 0
    assert (tmp_path / "deep/down/x.db").exists()
    with pytest.raises(SystemExit):
        main(["upgrade", "--db", "mysql://x"])
    with pytest.raises(SystemExit):
        main(["sidegrade"])
    monkeypatch.setenv("PREFIXGATE_DB", "postgresql+psycopg://u:hush@127.0.0.1:1/x")
    assert main(["current"]) == 1
    assert "hush" not in capsys.readouterr().err
