from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.options import parse_options

FILE = """
upstream:
  - http://one:8000
  - url: https://two.example/api/v1/
    key: sk-of-two
    headers: {X-Org: hush}
"""


def urls(*argv: str) -> list[str]:
    return [entry.url for entry in parse_options(argv).upstream]


def test_upstreams_come_from_flags_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.yaml").write_text(FILE)
    config = ("--config", str(tmp_path / "file.yaml"))
    assert urls(*config) == ["http://one:8000/v1", "https://two.example/api/v1"]
    two = parse_options(config).upstream[1]
    assert two.key is not None
    assert two.key.get_secret_value() == "sk-of-two"
    assert two.headers["x-org"].get_secret_value() == "hush"
    monkeypatch.setenv("PREFIXGATE_UPSTREAM", "http://three, http://four/")
    assert urls(*config) == ["http://three/v1", "http://four/v1"]
    assert urls(*config, "--upstream", "http://five", "--upstream=http://six/v1") == ["http://five/v1", "http://six/v1"]


def test_printed_options_mean_the_same_but_for_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(FILE)
    monkeypatch.setenv("PREFIXGATE_UPSTREAM_KEY", "sk-of-all")
    with pytest.raises(SystemExit):
        parse_options(["--config", str(tmp_path / "file.yaml"), "--print-config"])
    text = capsys.readouterr().out
    assert not any(secret in text for secret in ("sk-of-two", "sk-of-all", "hush"))
    printed = yaml.safe_load(text)
    printed["upstream_key"] = "sk-of-all"
    printed["upstream"][1] |= {"key": "sk-of-two", "headers": {"x-org": "hush"}}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(printed))
    again = parse_options(["--config", str(tmp_path / "again.yaml")])
    assert again.upstream == parse_options(["--config", str(tmp_path / "file.yaml")]).upstream


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--upstream", "one:8000"], "http://HOST:PORT"),
        (["--upstream", "http://me:hush@one"], "http://HOST:PORT"),
        (["--upstream", "http://one?key=1"], "http://HOST:PORT"),
        (["--upstream", "http://one", "--upstream", "http://one/v1"], "twice"),
        (["some/model", "--upstream", "http://one"], "MODEL (PREFIXGATE_MODEL): does nothing with --upstream"),
        (["smollm2-135m-instruct", "--upstream", "http://one"], "MODEL (PREFIXGATE_MODEL): does nothing"),
        (["--kv-cache-memory", "1GiB", "--upstream", "http://one"], "--kv-cache-memory (PREFIXGATE_KV_CACHE_MEMORY)"),
        (["--tool-template", "hermes", "--upstream", "http://one"], "with --upstream without --tokenizer"),
        (["--upstream-idle-timeout", "0"], "--upstream-idle-timeout"),
    ],
)
def test_options_that_cannot_work_are_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(argv)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "hush" not in said


def test_what_is_set_to_nothing_in_the_environment_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UPSTREAM", "UPSTREAM_KEY", "TOKENIZER"):
        monkeypatch.setenv(f"PREFIXGATE_{name}", "")
    settings = parse_options([])
    assert (settings.upstream, settings.upstream_key, settings.tokenizer) == ((), None, None)


@pytest.mark.parametrize(
    "entry",
    ["{url: 'http://one', key: 'hüsh'}", "{url: 'http://one', headers: {x: 'hüsh'}}", "{url: 'http://o', kee: 1}"],
)
def test_a_wrong_entry_of_the_file_is_named_without_its_secret(
    tmp_path: Path, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(f"upstream: [{entry}]")
    with pytest.raises(SystemExit):
        parse_options(["--config", str(tmp_path / "file.yaml")])
    said = capsys.readouterr().err
    assert re.search(
        r": upstream\.0\.[a-z.]+ in the file of --config: (wanted|is no field there, wanted url, key,) ", said
    )
    assert "hüsh" not in said
