"""`prefixgate rules` and `prefixgate normalize` against a gateway that is real but for its engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app import create_app
from gateway.commands import normalize, rules
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.database import Database
from gateway.storage.store import Store
from tests.gateway.support.command_line import Run, runner
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.stored_gateway import PEPPER

BODY = {"model": "m", "messages": [{"role": "system", "content": "Be kind.  \r\n"}, {"role": "user", "content": "hi "}]}


@pytest.fixture
async def run(
    tmp_path: Path,
    sqlite_template: bytes,
    backend: FakeBackend,
    model_files: ModelFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Run]:
    (tmp_path / "test.db").write_bytes(sqlite_template)
    store = Store(Database(f"sqlite+aiosqlite:///{tmp_path}/test.db"), PEPPER)
    app = create_app(Settings(admin_key="open-sesame"), backend, model_files, store=store)  # type: ignore[arg-type]
    async with running(app) as port:
        yield runner(capsys, f"http://127.0.0.1:{port}", monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    return str(tmp_path / "body.json")


async def test_modes_are_set_listed_and_cleared(run: Run) -> None:
    done = await run(rules.main, "set", "nfc_system", "audit", "--route", "/v1/chat/completions", "--json")
    assert done.json == {
        "tenant": "*", "route": "/v1/chat/completions", "rule": "nfc_system", "mode": "audit", "params": {},
    }  # fmt: skip
    listed = await run(rules.main, "list")
    assert listed.out.splitlines()[0].split() == ["name", "class", "version", "default", "mode", "params"]
    assert "audit" in listed.out.splitlines()[-1]
    assert (await run(rules.main, "clear", "nfc_system", "--route", "/v1/chat/completions")).status == 0
    again = await run(rules.main, "clear", "nfc_system")
    assert (again.status, "nfc_system" in again.err) == (1, True)


async def test_body_is_tried_with_and_without_rules(run: Run, file: str) -> None:
    done = await run(normalize.main, file, "--json")
    assert done.json["canonical"]["messages"][0]["content"] == "Be kind."
    kept = await run(normalize.main, file, "--json", "--without", "trim_end_of_system")
    assert kept.json["canonical"]["messages"][0]["content"] == "Be kind.  \n"
    moved = await run(normalize.main, file, "--json", "--mode", "off", "--tenant", "any label")
    assert moved.json["canonical"] == BODY


async def test_people_read_what_fired(run: Run, file: str) -> None:
    done = await run(normalize.main, file)
    assert (done.status, done.err) == (0, "")
    assert "trim_end_of_system" in done.out
    assert "num_tokens" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rule", "nope"], "rules.nope: unknown, wanted one of"),
        (["--rule", "nfc_system=["], "--rule: nfc_system: not valid JSON"),
        (["--rule", "nfc_system=[]"], "--rule: nfc_system: got list, wanted a JSON object"),
        (["--history", "/no/such"], "--history: /no/such: No such file"),
    ],
)
async def test_wrong_arguments_are_named(run: Run, file: str, arguments: list[str], says: str) -> None:
    done = await run(normalize.main, file, *arguments)
    assert (done.status, says in done.err) == (1, True), done.err


async def test_file_that_is_no_body_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    done = await run(normalize.main, str(tmp_path / "list.json"))
    assert (done.status, "FILE:" in done.err, "wanted a JSON object" in done.err) == (1, True, True)
