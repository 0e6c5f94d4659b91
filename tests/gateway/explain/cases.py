"""The sixty misses, by reason."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.explain.labelled import (
    BASE,
    BLOCK,
    SYSTEM,
    TOOLS,
    TURNS,
    Answer,
    Bench,
    Chat,
    Miss,
    R,
    after,
    filler,
    swap,
    turn,
)


def diverged() -> list[Miss]:
    """Other text at one place, behind at least one block that is alike."""
    system = [
        ("clock", "Now it is 10:41:07.", "Now it is 10:42:30.", "2", "1"),
        ("id", "Session 5f3a91c0.", "Session 7be024d1.", "7", "5"),
        ("word", "Be brief.", "Be kind.", "kind", "brief"),
        ("line end", "Be brief.\r\nBe kind.", "Be brief.\nBe kind.", "\n", "\r"),
        ("trailing blank", "Be brief.  ", "Be brief.", "</>", "  "),
    ]
    misses = []
    for name, before, now, prompt, cached in system:
        chats = [replace(BASE, system=f"{SYSTEM} {text}") for text in (before, now)]
        misses.append(
            Miss(f"system {name}", after(chats[0])(chats[1]), Answer(R.DIVERGED, "messages[0]", prompt, cached))
        )
    tools = [
        ("order", (TOOLS[1], TOOLS[0], TOOLS[2]), "tools[0]", "tides", "berths"),
        ("one more", (*TOOLS[:2], TOOLS[1], TOOLS[2]), "tools[2]", "tides", "weather"),
        ("one less", (TOOLS[0], TOOLS[2]), "tools[1]", "weather", "tides"),
        ("description", (TOOLS[0], swap(TOOLS[1], "a day", "a week"), TOOLS[2]), "tools[1]", "week", "day"),
        (
            "keys swapped",
            (TOOLS[0], '{"description": "High and low water of a day.", "name": "tides"}', TOOLS[2]),
            "tools[1]",
            "desc",
            "name",
        ),
        ("unset field", (TOOLS[0][:-1] + ', "strict": null}', *TOOLS[1:]), "tools[0]", ', "strict"', "}"),
    ]
    misses += [
        Miss(f"tools {name}", after(BASE)(replace(BASE, tools=changed)), Answer(R.DIVERGED, owner, prompt, cached))
        for name, changed, owner, prompt, cached in tools
    ]
    turns = [
        ("user edited", 0, swap(TURNS[0][1], "north", "south"), "south", "north"),
        ("user shortened", 0, TURNS[0][1][:-1], "</>", "?"),
        ("arguments printed again", 1, 'berths({"quay":"north","ship":"MARIE"})', '"north"', ' "north"'),
        ("other call", 1, 'berths({"quay": "north", "ship": "ANNA"})', "ANNA", "MARIE"),
        ("user line end", 0, swap(TURNS[0][1], " on the", "\non the"), "\n", " "),
        ("tool result printed again", 2, swap(TURNS[2][1], '"N4", ', '"N4",'), '"', " "),
        ("tool result", 2, swap(TURNS[2][1], "N4", "N5"), "5", "4"),
        ("assistant edited", 3, swap(TURNS[3][1], "N4 and N7 are", "N4 are"), "re", "nd"),
        ("reasoning dropped", 3, TURNS[3][1], "N2", "<think>"),
        ("assistant trimmed", 3, TURNS[3][1], "</>", "\n"),
    ]
    histories = {
        "reasoning dropped": "<think>Look at the list.</think>" + TURNS[3][1],
        "assistant trimmed": TURNS[3][1] + "\n",
    }
    for name, number, text, prompt, cached in turns:
        before = turn(3, histories[name]) if name in histories else BASE
        owner = f"messages[{number + 1}]"
        misses.append(Miss(name, after(before)(turn(number, text)), Answer(R.DIVERGED, owner, prompt, cached)))
    pushed = replace(BASE, turns=(TURNS[0], *TURNS[3:]))
    misses.append(Miss("history cut", after(BASE)(pushed), Answer(R.DIVERGED, "messages[2]", "N2", "berths")))
    inserted = replace(BASE, turns=(*TURNS[:4], ("system", "Mind the tide."), TURNS[4]))
    misses.append(
        Miss("system turn inserted", after(BASE)(inserted), Answer(R.DIVERGED, "template", "system>", "user>"))
    )
    return misses


def never_cached() -> list[Miss]:
    """Nothing begins alike, or what is cached just ends."""
    tomorrow = replace(BASE, date="2 May.")
    longer = replace(BASE, turns=(*TURNS, ("assistant", "At noon."), ("user", "Thank you, that is all for today.")))
    stranger = Chat("Another application altogether, of the same tenant.", (("user", "Hello!"),))
    return [
        Miss("first request", after()(BASE), Answer(R.NEVER_CACHED)),
        Miss("date of the template", after(BASE)(tomorrow), Answer(R.NEVER_CACHED, "template", "2", "1")),
        Miss("next turn", after(BASE)(longer), Answer(R.NEVER_CACHED)),
        Miss("other application", after(BASE)(stranger), Answer(R.NEVER_CACHED, "template", "[tools]", "1 May")),
        Miss("no date at all", after(tomorrow)(replace(BASE, date="")), Answer(R.NEVER_CACHED, "template", "[", "2")),
    ]


def evicted() -> list[Miss]:
    """Cached once, and pushed out by other prompts."""
    size = -(-len(BASE.text) // BLOCK)
    misses = []
    for number, name in enumerate(("whole prompt", "tail of it", "by a long one", "by many")):
        fillers = [
            filler(i, BLOCK * (size * 2 if number == 2 else 8)) for i in range(1 if number == 2 else 3 + 3 * number)
        ]
        pool = size + (20 if number == 1 else 10)
        make = after(BASE, *fillers, num_blocks=max(pool, size * 2 + 8 if number == 2 else 0))
        misses.append(Miss(f"evicted {name}", make(BASE), Answer(R.EVICTED)))
    return misses


def cold_restart() -> list[Miss]:
    """Cached before the engine started again."""

    def restarted(*between: Chat, times: int = 1):
        def make():
            bench = Bench()
            bench.send(BASE)
            for _ in range(times):
                bench.restart()
                for chat in between:
                    bench.send(chat)
            return bench, BASE

        return make

    head = replace(BASE, turns=(("user", "Good morning."),))
    return [
        Miss("restart", restarted(), Answer(R.COLD_RESTART)),
        Miss("restart twice", restarted(times=2), Answer(R.COLD_RESTART)),
        Miss("restart, head is back", restarted(head), Answer(R.COLD_RESTART)),
        Miss("restart, others came first", restarted(filler(0)), Answer(R.COLD_RESTART)),
    ]


def partly() -> list[Miss]:
    """The last block is there in part, enough for a copy or too little."""
    misses = []
    for overlap in (3, 5, 6, 7):  # min_partial_tokens is 8
        num_tokens = 6 * BLOCK + overlap
        misses.append(Miss(f"{overlap} of a block", after(BASE)(BASE.cut(num_tokens)), Answer(R.BELOW_MIN_REUSE)))
    for overlap in (8, 10, 12, 14):
        whole = BASE.cut(6 * BLOCK + overlap)
        chat = replace(BASE, tools=(whole.text[len("<s>1 May.[tools]") :] + "#ab",)).cut(6 * BLOCK + overlap + 2)
        shown = BASE.text[6 * BLOCK + overlap]
        misses.append(Miss(f"copy of {overlap}", after(BASE)(chat), Answer(R.COPIED, "tools[0]", "#", shown)))
    return misses


def at_the_same_time() -> list[Miss]:
    """Other requests hold or compute the blocks."""
    misses = []
    for size, cap in ((3, 0.0), (5, 0.01), (8, 0.02), (9, 0.0)):

        def capped(size: int = size, cap: float = cap):
            bench, chat = Bench(max_shared_ratio=cap, max_pinned_ratio=0.0), BASE.cut(size * BLOCK)
            bench.send(chat, holds=True)
            return bench, chat

        misses.append(Miss(f"cap {cap} on {size}", capped, Answer(R.SHARE_CAP)))
    for size in (3, 5, 8, 9):

        def computing(size: int = size):
            bench = Bench()
            bench.send(BASE.cut(size * BLOCK), holds=True, computes=False)
            return bench, BASE

        misses.append(Miss(f"computing {size}", computing, Answer(R.NOT_READY)))
    return misses


def switched_off() -> list[Miss]:
    """No cache."""
    chats = [BASE, turn(0, "Hello?"), replace(BASE, tools=()), replace(BASE, turns=())]
    return [
        Miss(f"cache off {number}", after(chat, enabled=False)(chat), Answer(R.DISABLED))
        for number, chat in enumerate(chats)
    ]


def elsewhere() -> list[Miss]:
    """Only another tenant has it."""
    longer = replace(BASE, turns=(*TURNS, ("assistant", "At noon, and once more at midnight."), TURNS[0]))
    misses = []
    for name, theirs, mine in (
        ("same prompt", BASE, BASE),
        ("theirs is longer", longer, BASE),
        ("mine is longer", BASE, longer),
        ("same tools", BASE, replace(BASE, system="Another text.")),
    ):

        def make(theirs: Chat = theirs, mine: Chat = mine):
            bench = Bench()
            bench.send(theirs, tenant="b")
            return bench, mine

        misses.append(Miss(f"other tenant, {name}", make, Answer(R.OTHER_SCOPE)))
    return misses


def all_misses() -> list[Miss]:
    return [
        *diverged(),
        *never_cached(),
        *evicted(),
        *cold_restart(),
        *partly(),
        *at_the_same_time(),
        *switched_off(),
        *elsewhere(),
    ]
