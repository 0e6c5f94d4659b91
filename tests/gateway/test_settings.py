from __future__ import annotations

from types import SimpleNamespace
from typing import cast, get_args

import pytest
from pydantic import ValidationError

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.kv_layout import KV_FORMATS
from gateway.__main__ import main
from gateway.auth import Authenticator, NoKeys
from gateway.backends.local.models import engine_config
from gateway.model_files import ModelFiles
from gateway.options import parse_options
from gateway.settings import BLOCK_SIZES, KVCacheDtype, Settings, unknown_variables

FLAGS = "host port db model-dir chat-template dtype block-size num-blocks kv-cache-memory gpu-memory-utilization max-model-len max-num-seqs "
FLAGS += "max-num-batched-tokens prefill-chunk kv-cache-dtype kv-skip-layers max-shared-ratio max-pinned-ratio growth-reserve"


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


def test_db_url_of_an_async_driver_is_taken() -> None:
    assert parse_options(["--db", "sqlite+aiosqlite:///x.db"]).db == "sqlite+aiosqlite:///x.db"


def test_misspelt_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_variables() == []
    for name in ("PREFIXGATE_PORT", "PREFIXGATE_ADMIN_KEY", "PREFIXGATE_PROT", "PREFIXGATE_", "OTHER_PROT"):
        monkeypatch.setenv(name, "1")
    assert unknown_variables() == ["PREFIXGATE_", "PREFIXGATE_PROT"]


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
