"""What each policy of the scheduler buys: the same load with the policy on and off, on simulated steps.

python -m benchmarks.scheduling [--fixed-ms 28] [--tokens-per-second 1200]

The scheduler and the prefix cache are the real ones; a step takes fixed + tokens / rate + attention, by the numbers
printed first. Prints the table of docs/scheduler.md.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from benchmarks import machine
from benchmarks.simulation import Arrival, Outcome, poisson, simulate, steady
from engine.config import SchedulerConfig
from engine.single_flight import SingleFlight
from engine.step_cost import StepCost
from engine.waiting import WaitingRoom

DEFAULTS = SchedulerConfig()
ONE_LANE = replace(DEFAULTS, long_prefill_token_threshold=0)
NO_TIME = replace(DEFAULTS, max_step_seconds=0.0)
FIRST_COME = replace(ONE_LANE, max_step_seconds=0.0)
MINUTES = 240.0


class Run:
    """Simulates loads on one machine."""

    def __init__(self, truth: StepCost) -> None:
        self._truth = truth

    def __call__(self, load: list[Arrival], config: SchedulerConfig = DEFAULTS, **options: float) -> Outcome:
        """See `simulate`."""
        return simulate(load, config, truth=self._truth, **options)  # type: ignore[arg-type]


def lanes(run: Run) -> None:
    print("\n50-token prompts (1 a second, 16 tokens each) beside 7,500-token prompts, 4 minutes")
    print("| long prompts | policy | short TTFT p50 | p99 | x alone | x one lane | long tok/s | loss | longest gap |")
    print("|---|---|---|---|---|---|---|---|---|")
    short = list(poisson(1.0, MINUTES, "short", 50, 16, seed=1))
    alone = run(short, until=MINUTES).ttft("short", 0.99)
    print(f"| none | all | | {alone:.3f} s | 1 | | | | |")
    for name, every in (("one in 12 s (80 % load)", 12.0), ("one in 6 s (overload)", 6.0)):
        load = short + list(steady(every, MINUTES, "long", 7500, 16))
        base = run(load, FIRST_COME, until=MINUTES)
        for policy, config in (
            ("one lane, 2,048 tokens a step", FIRST_COME),
            ("one lane, 0.25 s a step", ONE_LANE),
            ("two lanes, 2,048 tokens a step", NO_TIME),
            ("two lanes, 0.25 s a step", DEFAULTS),
        ):
            o = run(load, config, until=MINUTES)
            rate, base_rate = o.prefilled["long"] / o.seconds, base.prefilled["long"] / base.seconds
            p99 = o.ttft("short", 0.99)
            print(
                f"| {name} | {policy} | {o.ttft('short', 0.5):.3f} s | {p99:.3f} s | {p99 / alone:.1f} | "
                f"{p99 / base.ttft('short', 0.99):.3f} | {rate:.0f} | {1 - rate / base_rate:.1%} | {max(o.gaps):.2f} s |"
            )


def headroom(run: Run) -> None:
    print("\nThe same shorts beside 7,500-token prompts that answer 512 tokens, on a pool of 24,000 tokens")
    print("| long lane leaves an eighth | short TTFT p50 | p99 | long answers |")
    print("|---|---|---|---|")
    load = list(poisson(1.0, MINUTES, "short", 50, 16, seed=1)) + list(steady(12, MINUTES, "long", 7500, 512))
    for name, share in (("no", 0.0), ("yes", 1 / 8)):
        with patch("engine.scheduler.SHORT_LANE_HEADROOM", share):
            o = run(load, num_blocks=750, until=MINUTES)
        print(f"| {name} | {o.ttft('short', 0.5):.3f} s | {o.ttft('short', 0.99):.3f} s | {len(o.finished['long'])} |")


def fair_share(run: Run) -> None:
    print("\nOne tenant queues 100 requests of 400 tokens at once, another sends one every 4 s; 64 tokens each")
    print("| fair share | TTFT of the one tenant, mean | worst | of the other, mean | seconds for all |")
    print("|---|---|---|---|---|")
    many = [Arrival(0.0, "many", 400, 64, tenant="many") for _ in range(100)]
    one = [Arrival(1.0 + 4 * i, "one", 400, 64, tenant="one") for i in range(8)]
    for name, load in (("no", [replace(a, tenant="") for a in many + one]), ("yes", many + one)):
        o = run(load, replace(DEFAULTS, max_num_seqs=16))
        ttft = o.first_token
        print(
            f"| {name} | {np.mean(ttft['one']):.2f} s | {max(ttft['one']):.2f} s | {np.mean(ttft['many']):.2f} s | "
            f"{o.seconds:.1f} |"
        )


def single_flight(run: Run) -> None:
    print(
        "\n8 chats at once with a prefix in common and 30 tokens of their own, 16 tokens each; ten such groups, one in 2 s"
    )
    print("| in common | who finds it being computed | TTFT p50 | p99 | prompt tokens computed | seconds for all |")
    print("|---|---|---|---|---|---|")
    for common in (1000, 200, 45):
        load = [Arrival(2.0 * s, f"chat{s}", 30, 16, num_shared_tokens=common) for s in range(10) for _ in range(8)]
        for name, waits in (("computes it again", False), ("waits for it", True)):
            with ExitStack() as stack:
                if not waits:
                    stack.enter_context(patch.object(WaitingRoom, "_owner_of", lambda *_: None))
                    stack.enter_context(patch.object(SingleFlight, "followers", lambda *_: []))
                o = run(load)
            ttft = [seconds for values in o.first_token.values() for seconds in values]
            print(
                f"| {common:,} | {name} | {np.quantile(ttft, 0.5):.2f} s | {np.quantile(ttft, 0.99):.2f} s | "
                f"{sum(o.prefilled.values()):,} | {o.seconds:.1f} |"
            )


def inheritance(run: Run) -> None:
    print(
        "\nA 2,000-token document is being read among 8 50-token prompts a second when 4 short questions about it come"
    )
    print("| owner takes the lane of its waiters | TTFT of the questions, p50 | worst | of the other prompts, mean |")
    print("|---|---|---|---|")
    load = [Arrival(0.2, "document", 10, 16, num_shared_tokens=2000)]
    load += list(poisson(8.0, 15.0, "other", 50, 16, seed=1))
    load += [Arrival(0.6, "document", 20, 16, num_shared_tokens=2000) for _ in range(4)]
    for name, inherits in (("no", False), ("yes", True)):
        with ExitStack() as stack:
            if not inherits:
                stack.enter_context(patch.object(SingleFlight, "lane", lambda _, owner: owner.lane))
                stack.enter_context(patch.object(SingleFlight, "arrival", lambda _, owner: owner.arrival))
            o = run(load)
        questions = o.first_token["document"][1:]
        print(
            f"| {name} | {np.median(questions):.2f} s | {max(questions):.2f} s | {np.mean(o.first_token['other']):.2f} s |"
        )


def followers(run: Run) -> None:
    print("\n4 questions about one 2,000-token document and 5 other 7,500-token prompts come by turns, within a second")
    print(
        "| who waits in the long lane follows its prefix | TTFT of the questions, mean | worst | of the long ones, mean |"
    )
    print("|---|---|---|---|")
    load = [Arrival(0.2 * i, "long", 7500, 16) for i in range(5)]
    load += [Arrival(0.1 + 0.2 * i, "document", 20, 16, num_shared_tokens=2000) for i in range(4)]
    for name, follows in (("no", False), ("yes", True)):
        with ExitStack() as stack:
            if not follows:
                stack.enter_context(patch.object(SingleFlight, "followers", lambda *_: []))
            o = run(load)
        questions, others = o.first_token["document"], o.first_token["long"]
        print(f"| {name} | {np.mean(questions):.2f} s | {max(questions):.2f} s | {np.mean(others):.2f} s |")


def forks(run: Run) -> None:
    print("\nFour answers to a prompt of 2,000 tokens, 128 tokens each")
    print("| how | TTFT p99 | prompt tokens computed | seconds for all |")
    print("|---|---|---|---|")
    one = Arrival(0.0, "prompt", 0, 128, num_shared_tokens=2000)
    for name, load in (
        ("four requests, one after the other's first token", [replace(one, seconds=3.0 * i) for i in range(4)]),
        ("four requests at once", [one] * 4),
        ("n = 4", [replace(one, n=4)]),
    ):
        o = run(load)
        print(f"| {name} | {o.ttft('prompt', 0.99):.2f} s | {o.prefilled['prompt']:,} | {o.seconds:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixed-ms", type=float, default=28.0, help="of a step, however small")
    parser.add_argument("--tokens-per-second", type=float, default=1200.0, help="of a chunk, without attention")
    options = parser.parse_args()
    truth = StepCost(fixed=options.fixed_ms / 1e3, row=1 / options.tokens_per_second, fits=False)
    print(machine.describe())
    print(
        f"simulated: {options.fixed_ms:g} ms a step + tokens / {options.tokens_per_second:g} a second + "
        f"{truth.read * 1e6:g} us a cached token a decode row reads + {truth.pair * 1e6:g} us a query-key pair of a chunk"
    )
    run = Run(truth)
    for policy in (lanes, headroom, fair_share, single_flight, inheritance, followers, forks):
        policy(run)


if __name__ == "__main__":
    main()
