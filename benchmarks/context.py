"""Long chats through the context policy and its rivals: what is computed, how much is sent, which answers are there.

    python -m benchmarks.context [--transcripts FOLDER] [--answers]

Every request of a chat that only grows is made by each policy, rendered with the real template, tokenized and looked up in
the prefix cache's own code: blocks of 16; a pool without a limit, and one of half a window for each chat, which all chats
share. *found* is the share of questions whose answer stands in the prompt, letter by letter. Prints the tables of
docs/context-benchmark.md; status 1 where the policy does not keep what that page says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.context_chats import Chat, make_chats
from benchmarks.context_policies import policies
from benchmarks.context_replay import BLOCK_SIZE, Replay, Tally
from benchmarks.context_transcripts import read_chats
from benchmarks.machine import describe
from gateway.chat_request import conversation_of
from gateway.model_files import ModelFiles
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer

HELD_OUT_SEED = 20_262
"""Of the table; never of a run that a change was judged by."""
NUM_CHATS = {4096: 2, 8192: 2, 32_768: 1}
"""Of each family, by window."""
MODEL = "smollm2-135m-instruct"
"""Only its template and tokenizer count; the window is set."""
TOOL_TEMPLATE = Path(__file__).with_name("replay_template.jinja")
"""For recordings, whose calls and tools the model's own template does not show."""
_NUM_ROWS = 11
_MOST_CHATS = 16
"""Of a set of recordings."""
_OURS, _RIVALS = "ours", ("sliding window", "middle-out")
_MOST_CONTEXT, _OF_DOCUMENTS, _OF_TURNS = 0.5, 0.95, 0.9
_HEADER = (
    f"{'':33}{'prompt':>11}{'hit':>11}{'computed':>11}{'small pool':>11}{'context':>8}{'refused':>9}{'cuts':>6}"
    f"{'changed':>8}{'at once':>9}{'later':>7}{'all':>7}{'told':>7}{'quoted':>8}"
)


def read_model(template: str = "") -> tuple[PromptRenderer, Tokenizer]:
    """Read the real tokenizer, and the model's template where no other is given."""
    from engine import model_store  # here, so that tests need no engine

    found = model_store.resolve(MODEL)
    files = ModelFiles.from_folder(found.folder, found.name)
    tokenizer = Tokenizer(files.tokenizer_file)
    special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
    chat_template = ChatTemplate(template or files.chat_template, special_tokens=special_tokens)
    return PromptRenderer(chat_template, tokenizer), tokenizer


def play(row: int, window: int, chats: Sequence[Chat], template: str = "") -> tuple[str, Tally]:
    """Play chats with one row's policy, in a process of its own."""
    renderer, tokenizer = read_model(template)
    policy = policies(renderer, tokenizer)[row]
    num_blocks = max(1, len(chats) // 2) * window // BLOCK_SIZE
    return policy.name, Replay(policy, renderer, tokenizer, window=window, num_blocks=num_blocks).play(chats)


def line(name: str, tally: Tally) -> str:
    """Print a row."""
    rates = [("document", False), ("document", True), ("document", None), ("turn", None), ("quote", None)]
    shares = [tally.share(kind, is_late=is_late) for kind, is_late in rates]
    found = [f"{share.rate:.3f}" if share.of else "" for share in shares]
    return (
        f"{name:33}{tally.prompt_tokens:11,}{tally.hit_tokens:11,}{tally.prefill_tokens:11,}"
        f"{tally.prefill_tokens_small:11,}{tally.context_share:8.2f}{tally.num_refused:9}{tally.num_cuts:6}"
        f"{tally.changed_prefixes:8}{found[0]:>9}{found[1]:>7}{found[2]:>7}{found[3]:>7}{found[4]:>8}"
    )


def problems(tallies: dict[str, Tally]) -> list[str]:
    """Say what is not as promised: at the defaults, and of unchanged prefixes at any watermarks."""
    ours = tallies[_OURS]
    rivals = [name for name in _RIVALS if name in tallies and tallies[name].prefill_tokens <= ours.prefill_tokens]
    changed = [name for name, tally in tallies.items() if tally.changed_prefixes]
    return [
        *(f"{name} computes no more" for name in rivals),
        *(f"{name}: a prefix changed between cuts" for name in changed),
        *([f"context is above {_MOST_CONTEXT}"] if ours.context_share > _MOST_CONTEXT else []),
        *(["too few facts of documents"] if ours.share("document").rate < _OF_DOCUMENTS else []),
        *(["too few facts of old turns"] if ours.share("turn").rate < _OF_TURNS else []),
    ]


def table(pool: ProcessPoolExecutor, title: str, window: int, chats: Sequence[Chat], template: str = "") -> list[str]:
    """Play all rows and print them; give what is not as promised."""
    print(f"\n{title}, window {window:,}: {len(chats)} chats, {sum(len(chat.turns) for chat in chats)} requests")
    print(_HEADER)
    tallies: dict[str, Tally] = {}
    for run in [pool.submit(play, row, window, chats, template) for row in range(_NUM_ROWS)]:
        name, tally = run.result()
        tallies[name] = tally
        print(line(name, tally), flush=True)
    found = problems(tallies)
    print("; ".join(found) or "as promised")
    return found


def longest_chats(chats: Sequence[Chat], template: str) -> tuple[int, list[Chat]]:
    """Choose a window that the longest chat outgrows, and the longest of the chats that outgrow it."""
    renderer, _ = read_model(template)
    lengths = []
    for chat in chats:
        conversation = conversation_of({"model": "", "messages": chat.messages, "tools": list(chat.tools)})
        lengths.append(len(renderer.token_ids(conversation)))
    window = next((size for size in (32_768, 16_384, 8192) if max(lengths) >= 3 * size), 4096)
    order = sorted(range(len(chats)), key=lambda index: (-lengths[index], index))
    return window, [chats[index] for index in order[:_MOST_CHATS] if lengths[index] > window]


def main(argv: Sequence[str] | None = None) -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.context", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--windows", type=int, nargs="*", default=list(NUM_CHATS), metavar="TOKENS")
    parser.add_argument(
        "--transcripts", type=Path, metavar="FOLDER", help="of recorded chats; each folder in it is a set"
    )
    parser.add_argument("--answers", action="store_true", help="also let the real model answer a sample")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    args = parser.parse_args(argv)
    print(describe())
    start, found = time.monotonic(), []
    with ProcessPoolExecutor(args.jobs) as pool:
        for window in args.windows:
            found += table(pool, "generated", window, make_chats(args.seed, window, NUM_CHATS.get(window, 1)))
        for name, chats in (read_chats(args.transcripts) if args.transcripts else {}).items():
            template = TOOL_TEMPLATE.read_text()
            window, longest = longest_chats(chats, template)
            found += table(pool, name, window, longest, template)
    if args.answers:
        from benchmarks.context_answers import answers  # here, for it starts an engine

        answers(args.seed, *read_model())
    print(f"\n{time.monotonic() - start:.0f} s")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
