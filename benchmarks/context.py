"""Long chats through the context policy and its rivals: what is computed, how much is sent, which answers are there.

    python -m benchmarks.context [--transcripts FOLDER] [--answers]

Every request of a chat that only grows is made by each policy, rendered with the real template, tokenized and looked up in
the prefix cache's own code (blocks of 16; a pool without a limit, and one of half a window for each chat). *found* is the
share of questions whose answer stands in the prompt, word by word. Prints the tables of docs/context-benchmark.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.context_chats import Chat, make_chats
from benchmarks.context_policies import policies
from benchmarks.context_replay import BLOCK_SIZE, Replay, Tally
from benchmarks.machine import describe
from gateway.context.editor import room_of
from gateway.model_files import ModelFiles
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer

HELD_OUT_SEED = 20_261
"""Of the table; never of a run that a change was judged by."""
NUM_CHATS = {4096: 4, 8192: 3, 32_768: 1}
"""Of each family, by window."""
MODEL = "smollm2-135m-instruct"
"""Only its template and tokenizer; the window is set."""


def read_model() -> tuple[PromptRenderer, Tokenizer]:
    """Read the real template and tokenizer."""
    from engine import model_store  # here, so that tests need no engine

    found = model_store.resolve(MODEL)
    files = ModelFiles.from_folder(found.folder, found.name)
    tokenizer = Tokenizer(files.tokenizer_file)
    special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
    return PromptRenderer(ChatTemplate(files.chat_template, special_tokens=special_tokens), tokenizer), tokenizer


def play(number: int, window: int, chats: Sequence[Chat]) -> tuple[str, Tally]:
    """Play chats with one row's policy, in a process of its own."""
    renderer, tokenizer = read_model()
    policy = policies(renderer)[number]
    num_blocks = len(chats) * window // 2 // BLOCK_SIZE
    return policy.name, Replay(policy, tokenizer, room=room_of(window, None), num_blocks=num_blocks).play(chats)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--windows", type=int, nargs="+", default=list(NUM_CHATS), metavar="TOKENS")
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(12)))
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(argv)
    print(describe())
    start = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        for window in args.windows:
            chats = make_chats(args.seed, window, NUM_CHATS.get(window, 1))
            runs = [pool.submit(play, number, window, chats) for number in args.rows]
            print(window)
            base = None
            for run in runs:
                name, tally = run.result()
                base = base or tally.mean_context
                print(
                    f"{name:36}{tally.prompt_tokens:>11,}{tally.hit_tokens:>11,}{tally.prefill_tokens:>11,}{tally.prefill_tokens_small:>11,} {tally.mean_context / base:5.2f} refused {tally.num_refused}/{tally.num_requests} cuts {tally.num_cuts} changed {tally.changed_prefixes} once {tally.rate('document', is_late=False):.3f} late {tally.rate('document', is_late=True):.3f} docs {tally.rate('document'):.3f} turns {tally.rate('turn'):.3f}",
                    flush=True,
                )
                if args.misses:
                    for chat, turn, q in tally.missed:
                        print(
                            "   ",
                            chat.family,
                            turn,
                            len(chat.messages),
                            q,
                            "|",
                            chat.messages[turn - 1]["content"][-90:]
                            if chat.messages[turn - 1]["role"] == "user"
                            else "(tool)",
                        )
    print(f"{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
