"""How well the chat templates of a folder suit a prefix cache: `python -m benchmarks.templates FOLDER [--json]`.

Prints one line for each `*.jinja` under the folder; `--sentences` adds what costs hits in plain words. Templates that
were written with line breaks for the eye only are read as they are: bring them into the form that is served first.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.machine import describe
from gateway.template import ChatTemplateError
from gateway.template_check import TemplateVerdict, check_template

_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_COLUMNS = (
    "prompt_kept",
    "tool_prompt_kept",
    "answer_kept",
    "clock",
    "is_random",
    "reasoning",
    "tool_place",
    "tool_order_shows",
    "key_order_shows",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the templates are")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    parser.add_argument("--sentences", action="store_true", help="say in words what costs hits")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"FOLDER: got {options.folder}, wanted a folder")
    verdicts: dict[str, TemplateVerdict | str] = {}
    for path in sorted(options.folder.rglob("*.jinja")):
        name = str(path.relative_to(options.folder))
        try:
            verdicts[name] = check_template(path.read_text(encoding="utf-8"), _SPECIAL_TOKENS)
        except (ChatTemplateError, UnicodeDecodeError) as error:
            verdicts[name] = str(error)
    if options.json:
        print(json.dumps({name: v if isinstance(v, str) else v.shown() for name, v in verdicts.items()}, indent=1))
        return 0
    print(f"# {describe()}")
    print("\t".join(("template", "stable", *_COLUMNS)))
    for name, verdict in verdicts.items():
        print("\t".join([name, *_cells(verdict)]))
        for sentence in () if isinstance(verdict, str) or not options.sentences else verdict.sentences():
            print(f"    {sentence}")
    found = [verdict for verdict in verdicts.values() if isinstance(verdict, TemplateVerdict)]
    print(f"# {sum(verdict.is_stable for verdict in found)} of {len(verdicts)} templates are stable")
    return 0


def _cells(verdict: TemplateVerdict | str) -> list[str]:
    if isinstance(verdict, str):
        return ["error", verdict]
    return ["yes" if verdict.is_stable else "no", *(_cell(getattr(verdict, column)) for column in _COLUMNS)]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
