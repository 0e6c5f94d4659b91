"""`prefixgate keys`, `tenants` and `requests` against a gateway that is real but for its engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.app import create_app
from gateway.commands import admin_client, keys, requests, tenants
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.database import Database
from gateway.storage.store import Store
from tests.gateway.support.command_line import Run, runner
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.stored_gateway import ADMIN, PEPPER


@pytest.fixture
async def url(
    tmp_path: Path, sqlite_template: bytes, backend: FakeBackend, model_files: ModelFiles
) -> AsyncIterator[str]:
    (tmp_path / "test.db").write_bytes(sqlite_template)
    store = Store(Database(f"sqlite+aiosqlite:///{tmp_path}/test.db"), PEPPER)
    app = create_app(Settings(admin_key="open-sesame"), backend, model_files, store=store)  # type: ignore[arg-type]
    async with running(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, url, monkeypatch)


async def ask(url: str, key: str | None = None, **fields: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def get(url: str, path: str) -> dict:
    async with httpx.AsyncClient(trust_env=False, headers=ADMIN) as client:
        return (await client.get(f"{url}/admin/v1{path}")).json()


async def test_tenants_are_made_listed_and_shown(run: Run, url: str) -> None:
    made = await run(tenants.main, "create", "acme & söhne/1")
    assert (made.status, made.err) == (0, "")
    fields = dict(line.split(maxsplit=1) for line in made.out.splitlines())
    assert fields["name"] == "acme & söhne/1"
    listed = await run(tenants.main, "list")
    heading, *rows = listed.out.splitlines()
    assert heading.split() == ["id", "name", "limits", "created_at"]
    assert [fields["id"] in row for row in rows] == [False, True]
    shown = await run(tenants.main, "show", fields["id"], "--json")
    assert shown.json == await get(url, f"/tenants/{fields['id']}") == fields | {"limits": {}}
    assert (await run(tenants.main, "list", "--json")).json == await get(url, "/tenants")


async def test_new_key_is_alone_on_stdout_and_works_until_it_is_revoked(run: Run, url: str) -> None:
    await run(tenants.main, "create", "acme")
    made = await run(keys.main, "create", "acme", "--name", "ci", "--expires-at", "2100-01-01T00:00:00Z")
    key = made.out.removesuffix("\n")
    assert made.status == 0
    assert key.split() == [key]
    assert "not shown again" in made.err
    assert key not in made.err
    assert (await ask(url, key)).status_code == 200
    (row,) = (await run(keys.main, "list", "--json", "--tenant", "acme")).json["data"]
    assert (row["name"], row["expires_at"], row["models"]) == ("ci", "2100-01-01T00:00:00.000Z", None)
    rotated = await run(keys.main, "rotate", row["id"])
    new_key = rotated.out.strip()
    assert f"in place of {row['id']}" in rotated.err
    assert [(await ask(url, one)).status_code for one in (key, new_key)] == [401, 200]
    listed = await run(keys.main, "list")
    assert [line.split()[4] for line in listed.out.splitlines()] == ["state", "revoked", "active"]
    assert key not in listed.out
    assert new_key not in listed.out
    new_id = rotated.err.split()[0]
    revoked = await run(keys.main, "revoke", new_id, "--json")
    assert (revoked.json["id"], revoked.json["state"]) == (new_id, "revoked")
    assert (await ask(url, new_key)).status_code == 401


async def test_key_is_limited_to_models_and_an_old_one_may_live_on(run: Run, url: str) -> None:
    made = await run(keys.main, "create", "default", "--model", "tiny", "--model", "other", "--json")
    assert made.err == ""
    assert made.json["models"] == ["tiny", "other"]
    rotated = await run(keys.main, "rotate", made.json["id"], "--grace-seconds", "60", "--json")
    for key in (made.json["key"], rotated.json["key"]):
        assert (await ask(url, key)).status_code == 200


async def test_limits_are_set_lifted_and_cleared(run: Run, url: str) -> None:
    done = await run(
        tenants.main, "limit", "default", "--requests-per-minute", "1", "--tokens-per-day", "900", "--json"
    )
    assert done.json["limits"] == {"requests_per_minute": 1, "tokens_per_day": 900}
    assert [(await ask(url, max_tokens=5)).status_code for _ in range(2)] == [200, 429]
    done = await run(tenants.main, "limit", "default", "--requests-per-minute", "none", "--json")
    assert done.json["limits"] == {"requests_per_minute": None, "tokens_per_day": 900}
    assert (await ask(url, max_tokens=5)).status_code == 200
    made = await run(keys.main, "create", "default", "--json")
    done = await run(keys.main, "limit", made.json["id"], "--concurrency", "2", "--json")
    assert done.json["limits"] == {"concurrency": 2}
    assert "requests_per_minute -, tokens_per_day 900" in (await run(tenants.main, "show", "default")).out
    done = await run(tenants.main, "limit", "default", "--clear", "--json")
    assert done.json["limits"] == {}


@pytest.mark.parametrize(
    "flags",
    [(), ("--clear", "--concurrency", "1"), ("--concurrency", "0"), ("--concurrency", "many"), ("--concurrency", "-1")],
)
async def test_wrong_limit_is_a_wrong_command_line(run: Run, flags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        await run(tenants.main, "limit", "default", *flags)
    assert caught.value.code == 2


async def test_requests_are_listed_shown_and_exported(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [await ask(url, max_tokens=1 + n) for n in range(5)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    monkeypatch.setattr(admin_client, "MAX_PAGE", 2)
    listed = await run(requests.main, "list", "--json", "--limit", "3")
    assert [row["request_id"] for row in listed.json["data"]] == ids[:1:-1]
    assert listed.json["has_more"]
    everything = await run(requests.main, "list", "--json")
    assert everything.json == await get(url, "/requests")
    table = await run(requests.main, "list", "--min-output-tokens", "4")
    assert [row.split()[1] for row in table.out.splitlines()] == ["request_id", ids[4], ids[3]]
    assert "older" not in table.err
    assert "older" in (await run(requests.main, "list", "--limit", "1")).err
    assert (await run(requests.main, "list", "--status", "404")).out == "none\n"
    shown = await run(requests.main, "show", answers[0].json()["id"], "--json")
    assert shown.json == await get(url, f"/requests/{ids[0]}")
    assert f"request_id           {ids[0]}\n" in (await run(requests.main, "show", ids[0])).out
    export = await run(requests.main, "export", "--min-output-tokens", "4")
    assert [json.loads(line)["request_id"] for line in export.out.splitlines()] == ids[3:]
    assert export.err == "2 requests\n"


@pytest.mark.parametrize(
    ("main", "argv", "words"),
    [
        (tenants.main, ["create", "default"], ["name: ", "'default'"]),
        (tenants.main, ["create", ""], ["name: ", "''"]),
        (tenants.main, ["show", ".."], ["'..'"]),
        (keys.main, ["create", "nobody"], ["tenant: ", "'nobody'"]),
        (keys.main, ["create", "default", "--expires-at", "soon"], ["expires_at: ", "'soon'"]),
        (keys.main, ["create", "default", "--expires-at", "2001-01-01T00:00:00Z"], ["expires_at: ", "2001"]),
        (keys.main, ["rotate", "key_1", "--grace-seconds", "-1"], ["grace_seconds: ", "-1"]),
        (keys.main, ["rotate", "key_1", "--grace-seconds", "inf"], ["grace_seconds: ", "inf"]),
        (keys.main, ["revoke", "key_1"], ["'key_1'"]),
        (requests.main, ["list", "--status", "x"], ["status: ", "'x'"]),
        (requests.main, ["export", "--since", "x"], ["since: ", "'x'"]),
        (requests.main, ["show", "nothing"], ["'nothing'"]),
        (tenants.main, ["show", "a/b"], ["/admin/v1/tenants/a%2Fb"]),
    ],
)
async def test_refusals_are_one_line_that_names_the_field(
    run: Run, main: object, argv: list[str], words: list[str]
) -> None:
    done = await run(main, *argv)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"prefixgate {main.__module__.rpartition('.')[2]} {argv[0]}: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err


async def test_wrong_admin_key_is_said_to_be_that(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-barley")
    for main, action in ((tenants.main, "list"), (requests.main, "export")):
        done = await run(main, action)
        assert done.status == 1
        assert "PREFIXGATE_ADMIN_KEY: is not the admin key" in done.err
        assert "open-barley" not in done.err
