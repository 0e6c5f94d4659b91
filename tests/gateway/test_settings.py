from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast, get_args

import pytest
import yaml
from pydantic import ValidationError

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.kv_layout import KV_FORMATS
from gateway.__main__ import main
from gateway.auth import Authenticator, NoKeys
from gateway.backends.local.models import engine_config
from gateway.limits.limits import Limits
from gateway.model_files import ModelFiles
from gateway.options import parse_options
from gateway.settings import BLOCK_SIZES, KVCacheDtype, Settings, unknown_variables

FLAGS = "host port config db request-log-rows request-log-days log-format model-dir chat-template dtype block-size "
FLAGS += "num-blocks kv-cache-memory gpu-memory-utilization max-model-len max-num-seqs "
FLAGS += "max-num-batched-tokens prefill-chunk kv-cache-dtype kv-skip-layers max-shared-ratio max-pinned-ratio growth-reserve "
FLAGS += (
    "limit-requests-per-minute limit-requests-per-day limit-tokens-per-minute limit-tokens-per-day limit-concurrency"
)


def test_defaults_are_those_of_the_engine() -> None:
    settings = Settings()
    for config in (CacheConfig(), SchedulerConfig(), EngineConfig(model_path="x")):
        for name in set(config.__slots__) & Settings.model_fields.keys():
            assert getattr(settings, name) == getattr(config, name), name
    assert (settings.model, settings.host, settings.port) == ("smollm2-135m-instruct", "127.0.0.1", 8000)
    for block_size in BLOCK_SIZES:
        CacheConfig(block_size=block_size)
    assert get_args(KVCacheDtype) == KV_FORMATS


def test_engine_is_started_with_what_was_set() -> None:
    cache = {"kv_cache_dtype": "int8/per_token", "kv_skip_layers": "first:1,last:4", "block_size": 16, "num_blocks": 9}
    settings = Settings(**cache, max_shared_ratio=0.75, prefill_chunk=64, max_num_seqs=3, max_model_len=99)
    files = cast("ModelFiles", SimpleNamespace(folder="here"))
    config = engine_config(settings, files)
    for part in (config, config.cache, config.scheduler):
        for name in set(part.__slots__) & Settings.model_fields.keys():
            assert getattr(part, name) == getattr(settings, name), name


def test_flags_win_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_PORT", "9000")
    monkeypatch.setenv("PREFIXGATE_NUM_BLOCKS", "77")
    monkeypatch.setenv("PREFIXGATE_HOST", "")
    settings = parse_options(["some/model", "--port", "9001"])
    assert (settings.model, settings.port, settings.num_blocks) == ("some/model", 9001, 77)
    assert settings.host == "127.0.0.1"


def write(folder: Path, text: str) -> list[str]:
    (folder / "options.yaml").write_text(text)
    return ["--config", str(folder / "options.yaml")]


def test_flags_win_over_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "port: 1\nnum-blocks: 2\nmax_num_seqs: 3\nstore_content: true\nprefill_chunk: none\nadmin_key: open-sesame\n"
    monkeypatch.setenv("PREFIXGATE_NUM_BLOCKS", "22")
    monkeypatch.setenv("PREFIXGATE_PORT", "11")
    settings = parse_options([*write(tmp_path, text), "--port", "111"])
    assert (settings.port, settings.num_blocks, settings.max_num_seqs) == (111, 22, 3)
    assert (settings.store_content, settings.prefill_chunk) == (True, 0)
    assert settings.admin_key is not None
    monkeypatch.setenv("PREFIXGATE_CONFIG", str(tmp_path / "options.yaml"))
    assert parse_options([]).max_num_seqs == 3
    assert parse_options(write(tmp_path, "")).max_num_seqs is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", ["prot in the file of --config: is no option"]),
        ("port: x", ["port in the file of --config", "got 'x'", "integer"]),
        ("max-shared-ratio: [1]", ["max_shared_ratio in the file", "[1]"]),
        ("- port", ["options.yaml: got list, wanted a mapping"]),
        ("port: [", ["options.yaml: not valid YAML"]),
        ("port: 1\nport: 2", ["options.yaml: not valid YAML: a key is given twice"]),
        ("num-blocks: 2\nnum_blocks: 3", ["num_blocks: given twice"]),
        ("config: other.yaml", ["config: a file cannot name another"]),
        ("? [a, b]\n: 1", ["options.yaml"]),
        ("a: !!python/object/apply:os.system [ls]", ["options.yaml: not valid YAML"]),
        ("admin_key: '**********'", ["PREFIXGATE_ADMIN_KEY: wanted a secret, not the mask"]),
        ("pepper: short", ["PREFIXGATE_PEPPER: wanted at least 16 characters"]),
    ],
)
def test_bad_file_exits_with_2_and_says_what_was_wanted(
    tmp_path: Path, text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(write(tmp_path, text))
    message = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--config", str(tmp_path / name)])
    assert "cannot be read" in capsys.readouterr().err


def test_printed_config_is_yaml_that_means_the_same_but_for_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    monkeypatch.setenv("PREFIXGATE_PEPPER", "a pepper of some length")
    monkeypatch.setenv("PREFIXGATE_DB", "postgresql+psycopg://me:h/u@sh@host/name?password=hush2&x=1")
    with pytest.raises(SystemExit) as caught:
        parse_options(["--print-config", "--port", "9001", "--store-content", "--prefill-chunk", "none"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert not any(secret in text for secret in ("open-sesame", "pepper of", "h/u", "sh@host", "hush2"))
    printed = yaml.safe_load(text)
    assert printed["db"] == "postgresql+psycopg://me:***@host/name?password=***&x=1"
    assert printed.keys() == Settings.model_fields.keys() - {"config"}
    monkeypatch.delenv("PREFIXGATE_ADMIN_KEY")
    monkeypatch.delenv("PREFIXGATE_PEPPER")
    for name in ("admin_key", "pepper"):
        assert printed.pop(name) == "**********"
    again = parse_options(write(tmp_path, yaml.safe_dump(printed)))
    assert again.model_copy(update={"config": None}) == Settings(port=9001, store_content=True, prefill_chunk=0)


def test_flag_without_a_value_and_its_negation() -> None:
    assert parse_options(["--store-content"]).store_content is True
    assert parse_options(["--no-store-content"]).store_content is False


def test_password_of_a_bad_url_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--db", "mysql://me:hush@host/x"])
    message = capsys.readouterr().err
    assert "mysql://me:***@host/x" in message
    assert "hush" not in message


def test_prefill_chunk_none_is_no_limit() -> None:
    assert parse_options(["--prefill-chunk", "none"]).prefill_chunk == 0
    assert parse_options(["--prefill-chunk=64"]).prefill_chunk == 64


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("2gb", 2 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("500MB", 5 * 10**8),
        ("4kb", 4000),
        ("1TiB", 1 << 40),
    ],
)
def test_kv_cache_memory_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_options(["--kv-cache-memory", text]).kv_cache_memory == size


def test_help_names_every_flag_its_default_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in FLAGS.split():
        assert f"--{flag} " in text
        assert f"PREFIXGATE_{flag.upper().replace('-', '_')}]" in text
    assert "(default: 8000)" in text
    assert "PREFIXGATE_ADMIN_KEY" in text
    assert "--admin-key" not in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "1"], ["unrecognized", "--prot"]),
        (["--por", "1"], ["unrecognized", "--por"]),
        (["--admin-key", "x"], ["unrecognized"]),
        (["--port", "abc"], ["--port", "'abc'", "integer"]),
        (["--port", "70000"], ["--port", "'70000'", "65535"]),
        (["--block-size", "12"], ["--block-size", "'12'", "8, 16, 32 or 64"]),
        (["--num-blocks", "1"], ["--num-blocks", "'1'", "2"]),
        (["--max-model-len", "0"], ["--max-model-len", "'0'", "1"]),
        (["--prefill-chunk", "-1"], ["--prefill-chunk", "'-1'", "0"]),
        (["--kv-cache-dtype", "int8"], ["--kv-cache-dtype", "'int8'", "'auto'"]),
        (["--kv-skip-layers", "first"], ["--kv-skip-layers", "'first'"]),
        (["--dtype", "fp8"], ["--dtype", "'fp8'", "'bfloat16'"]),
        (["--max-shared-ratio", "1.5"], ["--max-shared-ratio", "'1.5'", "1"]),
        (["--max-shared-ratio", "nan"], ["--max-shared-ratio", "'nan'"]),
        (["--max-pinned-ratio", "0.9"], ["--max-pinned-ratio", "0.9", "--max-shared-ratio (0.5)"]),
        (
            ["--max-num-batched-tokens", "8", "--max-num-seqs", "9"],
            ["--max-num-batched-tokens", "8", "--max-num-seqs (9)"],
        ),
        (["--kv-cache-memory", "2"], ["--kv-cache-memory", "'2'", "wanted a size with its unit, such as 2GiB"]),
        (["--kv-cache-memory", "2 moons"], ["--kv-cache-memory", "'2 moons'", "wanted a size with its unit"]),
        (["--kv-cache-memory", "2GiB", "--num-blocks", "9"], ["--num-blocks", "--kv-cache-memory", "one of them"]),
        (["--gpu-memory-utilization", "1.2"], ["--gpu-memory-utilization", "'1.2'", "1"]),
        (["--db", "sqlite:///x.db"], ["--db", "sqlite:///x.db", "wanted an async SQLAlchemy URL, such as sqlite+aios"]),
        (["--db", "sqlite+aiosqlite:///:memory:"], ["--db", "wanted an async SQLAlchemy URL"]),
        (["--db", "sqlite+aiosqlite:///x.db?mode=ro"], ["--db", "wanted an async SQLAlchemy URL"]),
        (["--store-content=yes"], ["--store-content", "ignored explicit argument"]),
        (["--log-format", "xml"], ["--log-format", "'xml'", "'text' or 'json'"]),
        (["--request-log-rows", "-1"], ["--request-log-rows", "'-1'", "0"]),
        (["--request-log-days", "0"], ["--request-log-days", "'0'"]),
        (["--limit-requests-per-minute", "0"], ["--limit-requests-per-minute", "'0'", "1"]),
        (["--limit-concurrency", "many"], ["--limit-concurrency", "'many'", "integer"]),
        (["one", "two"], ["unrecognized", "two"]),
    ],
)
def test_bad_option_exits_with_2_and_says_what_was_wanted(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(argv)
    message = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2
    assert message.startswith("prefixgate serve: error: ")
    assert all(word in message for word in words), message


def test_bad_environment_names_its_variable_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFIXGATE_PORT", "x")
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "hush")
    with pytest.raises(SystemExit):
        parse_options([])
    message = capsys.readouterr().err
    assert "PREFIXGATE_PORT" in message
    assert "PREFIXGATE_ADMIN_KEY: wanted at least 8 characters" in message
    assert "hush" not in message


@pytest.mark.parametrize(
    "key", ["schlüssel-schlüssel", "open sesame ", " open-sesame", "open\tsesame", "open\x7fsesame"]
)
def test_admin_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(admin_key=key)
    assert "printable ASCII, no space at the ends" in str(caught.value)


def test_admin_key_of_any_printable_ascii_is_taken() -> None:
    key = Settings(admin_key="open ~!#$ sesame").admin_key
    assert key is not None
    Authenticator(NoKeys(), host="::1", admin_key=key).check_admin("Bearer open ~!#$ sesame")


def test_limits_are_read_by_their_names() -> None:
    argv = ["--limit-tokens-per-day", "7", "--limit-requests-per-minute", "3"]
    assert parse_options(argv).default_limits == Limits(tokens_per_day=7, requests_per_minute=3)


def test_db_url_of_an_async_driver_is_taken() -> None:
    assert parse_options(["--db", "sqlite+aiosqlite:///x.db"]).db == "sqlite+aiosqlite:///x.db"


def test_database_is_a_file_of_the_user_by_default() -> None:
    assert Settings().database_url.endswith("prefixgate/prefixgate.db")
    assert Settings(db="sqlite+aiosqlite:///x.db").database_url == "sqlite+aiosqlite:///x.db"


def test_misspelt_variables_are_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert unknown_variables() == []
    for name in ("PREFIXGATE_PORT", "PREFIXGATE_ADMIN_KEY", "PREFIXGATE_PROT", "PREFIXGATE_", "OTHER_PROT"):
        monkeypatch.setenv(name, "1")
    assert unknown_variables() == ["PREFIXGATE_", "PREFIXGATE_PROT"]
    with pytest.raises(SystemExit) as caught:
        parse_options([])
    assert caught.value.code == 2
    assert "PREFIXGATE_: is no option" in capsys.readouterr().err


def test_secret_is_masked_when_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    assert "open-sesame" not in repr(Settings())


def test_command_is_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("prefixgate ")
    assert main(["--help"]) == 0
    assert "serve" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["sevre"]) == 2
    assert "'sevre'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--nonsense"])
    assert caught.value.code == 2
