"""The rules of this house that no linter knows. `python -m tests.house_rules` prints what breaks them; status 1 then.

- no file of code over 400 lines: it has a second idea
- every field of a configuration class has a docstring
- `kernels` has no `__version__`: transformers probes a package of that name by its version
- nothing names a package registry or a path of the machine that it was written on
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 400
CONFIG_FILES = ("engine/config.py", "prefixcache/interface.py", "gateway/settings.py")
FOREIGN = re.compile(
    r"(py" r"pi\.org|files\.python" r"hosted|download\.py" r"torch|npm" r"js\.org|/wor" r"k/|\.\./sha" r"red)"
)


def tracked_files() -> list[Path]:
    """Files that git tracks, or would."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [Path(name) for name in names if Path(name).is_file()]


def too_long(path: Path, text: str) -> Iterator[str]:
    """Code files over the limit."""
    if path.suffix == ".py" and (lines := text.count("\n")) > MAX_LINES:
        yield f"{path}: {lines} lines, wanted at most {MAX_LINES}; which second idea can move out?"


def undocumented_fields(path: Path, text: str) -> Iterator[str]:
    """Fields of `*Config` and `Settings` classes without a docstring under them."""
    if str(path) not in CONFIG_FILES:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or not node.name.endswith(("Config", "Settings")):
            continue
        for field, follower in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            documented = isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
            if not documented and "ClassVar" not in ast.unparse(field.annotation):
                yield f"{path}:{field.lineno}: {node.name}.{field.target.id} has no docstring"


def probed_version(path: Path, text: str) -> Iterator[str]:
    """`kernels.__version__`."""
    if path == Path("kernels/__init__.py") and "__version__" in text:
        yield f"{path}: never define __version__ here"


def foreign_names(path: Path, text: str) -> Iterator[str]:
    """Registries and paths that nobody else has."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := FOREIGN.search(line):
            yield f"{path}:{number}: names {match.group()!r}"


def main() -> int:
    """Print every breach."""
    rules = (too_long, undocumented_fields, probed_version, foreign_names)
    breaches = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        breaches += [breach for rule in rules for breach in rule(path, text)]
    print("\n".join(breaches) or "house rules: fine")  # noqa: T201
    return bool(breaches)


if __name__ == "__main__":
    sys.exit(main())
