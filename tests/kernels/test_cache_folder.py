"""Where numba's compiled code is kept."""

from __future__ import annotations

from pathlib import Path

import kernels.cpu as cpu


def test_compiled_code_lies_beside_the_sources_or_in_the_users_cache_where_those_are_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu._config, "CACHE_DIR", "")
    assert cpu._base_folder(tmp_path) == tmp_path / "__pycache__"
    monkeypatch.setattr(cpu.os, "access", lambda *_: False)
    assert cpu._base_folder(tmp_path) == Path.home() / ".cache" / "prefixgate" / "numba"


def test_a_folder_that_the_user_chose_wins(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu._config, "CACHE_DIR", str(tmp_path / "chosen"))
    assert cpu._base_folder(tmp_path) == tmp_path / "chosen"
