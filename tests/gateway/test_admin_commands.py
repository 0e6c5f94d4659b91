"""Commands over the admin API: what they send, what they print, and what they say when there is no API."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse

from gateway.commands import keys, prompts, requests, tenants
from gateway.commands.tables import print_object, print_table
from gateway.settings import unknown_variables
from tests.gateway.support.command_line import Run, runner
from tests.gateway.support.fake_admin import FakeAdmin, refusal
from tests.gateway.support.server import running
from tests.support.server import free_port

RETENTION = {"pin": True, "priority": 0, "expires_at": None}


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin([{"id": "p1"}])


@pytest.fixture
async def url(admin: FakeAdmin) -> AsyncIterator[str]:
    async with running(admin.app()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, url, monkeypatch)


# Prompts


@pytest.mark.parametrize(
    ("argv", "method", "path", "body"),
    [
        (["show", "p1"], "GET", "/p1", None),
        (["show", "p1", "--version", "2"], "GET", "/p1/versions/2", None),
        (["stats", "p1"], "GET", "/p1/statistics", None),
        (["drift", "p1"], "GET", "/p1/drift", None),
        (["warm", "p1"], "POST", "/p1/warm", {}),
        (["rollback", "p1"], "POST", "/p1/rollback", {}),
        (["retire", "p1"], "POST", "/p1/retire", {}),
        (["activate", "p1", "3"], "POST", "/p1/activate", {"version": 3}),
        (["pin", "p1"], "PUT", "/p1/retention", RETENTION),
        (["pin", "p1", "--off", "--priority", "5"], "PUT", "/p1/retention", RETENTION | {"pin": False, "priority": 5}),
        (["pin", "p1", "--expires-at", "T"], "PUT", "/p1/retention", RETENTION | {"expires_at": "T"}),
        (["show", "a/ü?"], "GET", "/a%2F%C3%BC%3F", None),
        (["show", ".."], "GET", "/%2E%2E", None),
    ],
)
async def test_prompt_actions_ask_for_what_they_say(
    run: Run, admin: FakeAdmin, argv: list[str], method: str, path: str, body: Any
) -> None:
    done = await run(prompts.main, *argv)
    assert (done.status, done.out) == (0, "id  p1\n")
    (call,) = admin.calls
    assert (call.method, call.path, call.body) == (method, f"/admin/v1/prompts{path}", body)
    assert call.authorization == "Bearer open-sesame"


async def test_prompt_is_registered_from_text_as_it_is(run: Run, admin: FakeAdmin, tmp_path: Path) -> None:
    file = tmp_path / "support.txt"
    file.write_bytes("\ufeffBe kind.\r\nToday is {{date}}.\n".encode())
    done = await run(prompts.main, "register", "support", "--file", str(file), "--slot", "date", "--json")
    assert done.json == {"id": "p1"}
    (call,) = admin.calls
    assert (call.method, call.path) == ("POST", "/admin/v1/prompts")
    assert call.body == {"name": "support", "text": "\ufeffBe kind.\r\nToday is {{date}}.\n", "slots": ["date"]}


async def test_prompt_is_registered_from_messages_with_all_options(run: Run, admin: FakeAdmin, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "system", "content": "Be kind."}]')
    (tmp_path / "tools.txt").write_text('[{"type": "function"}]')
    options = ["--tools", f"{tmp_path}/tools.txt", "--model", "m", "--scope", "public", "--pin", "--priority", "2"]
    await run(prompts.main, "register", "support", "--file", f"{tmp_path}/chat.json", *options)
    (call,) = admin.calls
    assert call.body == {
        "name": "support",
        "messages": [{"role": "system", "content": "Be kind."}],
        "tools": [{"type": "function"}],
        "model": "m",
        "scope": "public",
        "retention": RETENTION | {"priority": 2},
    }


async def test_new_version_is_read_from_stdin(run: Run, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'[{"role": "system", "content": "x"}]')))
    await run(prompts.main, "register", "p1", "--file", "-", "--format", "messages", "--new-version", "--activate")
    (call,) = admin.calls
    assert call.path == "/admin/v1/prompts/p1/versions"
    assert call.body == {"messages": [{"role": "system", "content": "x"}], "activate": True}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.txt", None, "--file: {}: No such file"),
        ("latin.txt", b"ab\xe9", "--file: {}: not UTF-8 at byte 2"),
        ("chat.json", b"{", "--file: {}: not valid JSON"),
        ("chat.json", b'{"role": "system"}', "--file: {}: got dict, wanted a JSON array"),
    ],
)
async def test_file_that_cannot_be_read_is_named(
    run: Run, admin: FakeAdmin, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = await run(prompts.main, "register", "support", "--file", f"{tmp_path}/{name}")
    assert (done.status, admin.calls) == (1, [])
    assert words.format(tmp_path / name) in done.err


async def test_two_versions_are_compared_line_by_line(run: Run, admin: FakeAdmin) -> None:
    lines = ["--- 1", "+++ 2", "@@ -1 +1 @@", "-Be kind.", "+Be brief.\x1b[2J"]
    for shape in (lines, "\n".join(lines)):
        admin.answers = [{"from": 1, "to": 2, "diff": shape}]
        done = await run(prompts.main, "diff", "p1", "1", "2")
        assert admin.calls[-1].query == {"from": "1", "to": "2"}
        assert done.out == "from  1\nto    2\n\ndiff:\n--- 1\n+++ 2\n@@ -1 +1 @@\n-Be kind.\n+Be brief.\\x1b[2J\n"


async def test_drift_is_a_table(run: Run, admin: FakeAdmin) -> None:
    variants = [{"tenant": "t1", "place": {"character": 812, "got": "e\n"}, "repaired": True, "count": 9}]
    admin.answers = [{"prompt": "support", "version": 3, "variants": variants}]
    out = (await run(prompts.main, "drift", "support")).out
    assert out.splitlines()[-2:] == [
        "tenant  place.character  place.got  repaired  count",
        "t1      812              e\\n        yes       9",
    ]


async def test_prompts_are_listed_over_all_pages(run: Run, admin: FakeAdmin) -> None:
    first = {"object": "list", "data": [{"id": "a"}], "has_more": True, "next_cursor": "1"}
    admin.answers = [first, {"object": "list", "data": [{"id": "b"}], "has_more": False, "next_cursor": None}]
    done = await run(prompts.main, "list", "--json", "--tenant", "acme", "--retired")
    assert done.json == {"object": "list", "data": [{"id": "a"}, {"id": "b"}], "has_more": False, "next_cursor": None}
    query = {"tenant": "acme", "retired": "true"}
    assert [call.query for call in admin.calls] == [query, query | {"cursor": "1"}]


# Blocks


async def test_blocks_of_a_request_are_a_table(run: Run, admin: FakeAdmin) -> None:
    block = {"block_id": 7, "state": "active", "ref_count": 2, "shared": True, "pinned": False, "num_tokens": 32}
    blocks = [block | {"reason": "hit"}, block | {"block_id": 12, "shared": False, "reason": "diverged"}]
    answer = {"status": "running", "num_prompt_tokens": 64, "reasons": {"hit": 1, "diverged": 1}, "blocks": blocks}
    admin.answers = [answer]
    done = await run(requests.main, "show", "req-1", "--blocks")
    assert [call.path for call in admin.calls] == ["/admin/v1/requests/req-1/blocks"]  # a running one is in no log
    assert done.out.splitlines() == [
        "status             running",
        "num_prompt_tokens  64",
        "reasons            hit 1, diverged 1",
        "",
        "blocks:",
        "block_id  state   ref_count  shared  pinned  num_tokens  reason",
        "7         active  2          yes     no      32          hit",
        "12        active  2          no      no      32          diverged",
    ]
    assert (await run(requests.main, "show", "req-1", "--blocks", "--json")).json == answer


async def test_explanation_of_a_request_is_a_list_of_its_fields(run: Run, admin: FakeAdmin) -> None:
    admin.answers = [
        {"reason": "diverged", "token": 7, "rule": {"name": "echo_repair", "mode": "off"}, "nearest": None}
    ]
    done = await run(requests.main, "explain", "req/1")
    assert [call.path for call in admin.calls] == ["/admin/v1/requests/req%2F1/explain"]
    assert done.out.splitlines() == [
        "reason   diverged",
        "token    7",
        "rule     name echo_repair, mode off",
        "nearest  -",
    ]


# What is no answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            refusal(409, "got 9 blocks, wanted at most 4", param="retention.pin"),
            "retention.pin: got 9 blocks, wanted at most 4",
        ),
        (refusal(400, "name: got\n1", param="name"), "name: got 1"),
        (refusal(503, "the database is gone"), "the database is gone (request req-7)"),
        (refusal(404, "nothing here", code="unknown_path"), "/admin/v1/tenants; its version is another"),
        (refusal(403, "the admin API is off", code="admin_disabled"), "the admin API is off"),
        (HTMLResponse("<h1>Bad Gateway</h1>", 502), "got status 502 and no answer of a gateway"),
        (HTMLResponse("<h1>Hello</h1>"), "got status 200 and no answer of a gateway"),
        (JSONResponse([1]), "got status 200 and no answer of a gateway"),
        (JSONResponse({"error": "x"}, 500), "got status 500 and no answer of a gateway"),
        (RedirectResponse("http://127.0.0.1:9/"), "got status 307 and no answer of a gateway"),
        (JSONResponse({"data": None}), "without a list in it"),
        (JSONResponse({"data": [1]}), "without a list in it"),
    ],
)
async def test_what_is_no_answer_is_one_line_on_stderr(run: Run, admin: FakeAdmin, answer: Any, words: str) -> None:
    admin.answers = [answer]
    done = await run(tenants.main, "list")
    assert (done.status, done.out) == (1, "")
    assert words in done.err
    assert done.err.count("\n") == 1


async def test_export_of_something_else_prints_none_of_it(run: Run, admin: FakeAdmin) -> None:
    admin.answers = [HTMLResponse("<h1>Hello</h1>\n")]
    done = await run(requests.main, "export")
    assert (done.status, done.out) == (1, "")
    assert "no answer of a gateway" in done.err


async def test_nobody_there_says_how_to_start_a_gateway(run: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for main, action in ((tenants.main, "list"), (requests.main, "export")):
        done = await run(main, action, "--url", url)
        assert done.status == 1
        assert url in done.err
        assert "prefixgate serve" in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("last", [b"", b'{"a": '])
async def test_export_that_breaks_off_fails_after_its_whole_lines(run: Run, admin: FakeAdmin, last: bytes) -> None:
    async def lines() -> AsyncIterator[bytes]:
        for part in (b'{"a": 1}\n{"a"', b": 2}\n" + last):
            yield part
            await asyncio.sleep(0.01)
        if not last:
            raise ConnectionError("gone")

    admin.answers = [StreamingResponse(lines(), media_type="application/jsonl")]
    done = await run(requests.main, "export", "--tenant", "acme")
    assert (done.status, done.out) == (1, '{"a": 1}\n{"a": 2}\n')
    assert admin.calls[0].query == {"tenant": "acme"}
    assert done.err.startswith("prefixgate requests export: http://127.0.0.1:")
    assert "2 requests" not in done.err


async def test_reader_that_has_enough_ends_the_command_quietly(run: Run, admin: FakeAdmin) -> None:
    admin.answers = [StreamingResponse(iter([b"x" * 999 + b"\n"] * 2000), media_type="application/jsonl")]
    code = "from gateway.commands.requests import main; import sys; sys.exit(main(['export']))"
    command = [sys.executable, "-c", code]
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ.copy(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined] -- no public way to stop reading
    assert await process.stderr.read() == b""
    assert await process.wait() == 1


# Options


async def test_own_machine_is_asked_without_a_proxy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert (await run(tenants.main, "show", "x")).status == 0


async def test_flag_wins_over_the_variable_and_a_path_is_kept(
    run: Run, admin: FakeAdmin, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_URL", "http://127.0.0.1:9")
    assert (await run(tenants.main, "show", "x", "--url", f"{url}/behind/")).status == 0
    assert admin.calls[0].path == "/behind/admin/v1/tenants/x"


@pytest.mark.parametrize(
    ("variables", "argv", "words"),
    [
        ({}, ["list"], "PREFIXGATE_ADMIN_KEY: is not set"),
        ({"PREFIXGATE_ADMIN_KEY": "short"}, ["list"], "PREFIXGATE_ADMIN_KEY: wanted at least 8"),
        ({"PREFIXGATE_ADMIN_KEY": "open-sesame", "PREFIXGATE_ULR": "x"}, ["list"], "PREFIXGATE_ULR: is no option"),
        ({"PREFIXGATE_URL": "localhost:8000"}, ["list"], "got 'localhost:8000', wanted http://HOST:PORT"),
        ({}, ["list", "--url", "http://me:secret@host"], "wanted http://HOST:PORT"),
        ({}, ["list", "--url", "http://host:99999"], "wanted http://HOST:PORT"),
        ({}, ["list", "--url", "http://host/?x"], "wanted http://HOST:PORT"),
        ({}, ["show", "\udce9"], "not valid UTF-8"),
        ({}, [], "ACTION"),
        ({}, ["frobnicate"], "invalid choice: 'frobnicate'"),
    ],
)
def test_wrong_line_or_environment_exits_with_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    argv: list[str],
    words: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stop:
        tenants.main(argv)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["activate", "p1", "x"],
        ["register", "p1"],
        ["register", "p1", "--file", "-", "--format", "xml"],
        ["register", "p1", "--file", "README.md", "--new-version", "--scope", "public"],
        ["pin"],
    ],
)
def test_wrong_prompt_line_exits_with_2(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    with pytest.raises(SystemExit) as stop:
        prompts.main(argv)
    assert stop.value.code == 2


def test_serve_knows_the_variables_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_URL", "http://127.0.0.1:8000")
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    assert unknown_variables() == []


def test_every_command_of_the_project_is_there() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    commands = project["entry-points"]["prefixgate.commands"]
    for name, main in (
        ("keys", keys.main),
        ("tenants", tenants.main),
        ("requests", requests.main),
        ("prompts", prompts.main),
    ):
        module, _, function = commands[name].partition(":")
        assert getattr(importlib.import_module(module), function) is main


# Tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.123456, "0.1235"),
        (False, "no"),
        ([], "-"),
        ({}, "-"),
        (["x", "y"], "x, y"),
        (list(range(1500)), "0, 1, 2, 3, … (1500 in all)"),
        ({"hit": 2, "diverged": 1}, "hit 2, diverged 1"),
        ([[1], {}], "[[1], {}]"),
        ("\x1b[2J\u202e\t", "\\x1b[2J\\u202e\\t"),
    ],
)
def test_short_value_is_printed_beside_its_name(capsys: pytest.CaptureFixture[str], value: Any, text: str) -> None:
    print_object({"name": value})
    assert capsys.readouterr().out == f"name  {text}\n"


def test_long_values_are_printed_below_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_object({"text": "a\nb", "inner": {"rows": [{"c": 1}], "fl\x1bag": True}, "last": list("vwxyz")})
    assert (
        capsys.readouterr().out == "inner.fl\\x1bag  yes\n\ntext:\na\nb\n\ninner.rows:\nc\n1\n\nlast:\nv\nw\nx\ny\nz\n"
    )


def test_rows_with_more_text_than_a_cell_holds_are_printed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Be kind. " * 9
    print_object({"messages": [{"role": "system", "content": text + "\nBe brief."}, {"role": "user", "content": text}]})
    short = f"messages[0].role     system\nmessages[1].role     user\nmessages[1].content  {text}\n"
    assert capsys.readouterr().out == f"{short}\nmessages[0].content:\n{text}\nBe brief.\n"


def test_table_cuts_long_cells_and_leaves_out_columns_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"b": "x" * 99, "a": 1}, {"c": 2}], ["a", "b", "z"])
    assert capsys.readouterr().out == f"a  b\n1  {'x' * 63}…\n-  -\n"
