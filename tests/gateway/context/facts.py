"""Documents in which facts are hidden, and questions about them in other words' order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

_PLACES = ("north gate", "server room", "old harbor", "blue archive", "east tower", "wine cellar", "staff entrance")
_THINGS = ("access code", "serial number", "alarm code", "inventory count", "door number")
_NAMES = ("Okafor", "Lindqvist", "Moreau", "Tanaka", "Abebe", "Novak", "Silva", "Haddad")
_JOBS = {
    "pumps": "pump",
    "invoices": "invoice",
    "bridges": "bridge",
    "batteries": "battery",
    "licences": "licence",
    "greenhouses": "greenhouse",
}
_ENGLISH = tuple("the a of and to meeting report weather road green river market people plan week number code gate room was is were walked slowly during long after before door tower staff found".split())  # fmt: skip  # noqa: SIM905
_GERMAN = tuple("der die das und nicht Bericht Wetter Straße grüne Fluss Markt Leute Plan Woche lange nach vor ging".split())  # fmt: skip  # noqa: SIM905
_CHINESE = tuple("我们昨天开会讨论天气市场计划报告河流道路人们时间问题方案城市花园")


@dataclass(frozen=True)
class Fact:
    text: str
    question: str
    answer: str


def _english(rng: random.Random) -> str:
    return " ".join(rng.choices(_ENGLISH, k=rng.randint(6, 16))).capitalize() + ". "


def _german(rng: random.Random) -> str:
    return " ".join(rng.choices(_GERMAN, k=rng.randint(6, 16))).capitalize() + ". "


def _chinese(rng: random.Random) -> str:
    return "".join(rng.choices(_CHINESE, k=rng.randint(8, 24))) + "。"


def _log(rng: random.Random) -> str:
    return f"\n2026-03-{rng.randint(10, 28)} INFO worker-{rng.randint(1, 9)} handled request {rng.randint(1000, 9999)} code=200\n"


def _code(rng: random.Random) -> str:
    return f"\n```\ndef plan_{rng.randint(1, 99)}(room, code):\n    return room[{rng.randint(1, 99)}]\n```\n"


def filler(rng: random.Random, size: int) -> list[str]:
    kind = rng.choice((_english, _german, _chinese, _log, _code))
    scraps: list[str] = []
    while sum(map(len, scraps)) < size:
        scraps.append("".join(kind(rng) for _ in range(4)) + rng.choice(("", "\n\n")))
    return scraps


def facts(rng: random.Random) -> Iterator[Fact]:
    for place in _PLACES:
        thing, answer = rng.choice(_THINGS), str(rng.randint(1000, 9999))
        yield Fact(f"The {thing} of the {place} is {answer}.", f"For the {place}, what is the {thing}?", answer)
    for job, one in _JOBS.items():
        name = rng.choice(_NAMES)
        yield Fact(f"We agreed that {name} must check the {job}.", f"Who was to check each {one}?", name)
    for name, city in (("王芳", "杭州"), ("李伟", "成都"), ("张敏", "大连")):
        yield Fact(f"{name}的生日晚会在{city}举行。", f"在哪里举行{name}的晚会？", city)
    for key in ("maxRetryCount", "cache_ttl_seconds"):
        answer = str(rng.randint(100, 999))
        yield Fact(f"The setting {key} is {answer}.", f"How many does {key.replace('_', ' ')} allow?", answer)


def documents(rng: random.Random, size: int, hidden: list[Fact]) -> list[tuple[str, str]]:
    texts = [filler(rng, size // 10) for _ in range(10)]
    for fact in hidden:
        scraps = rng.choice(texts)
        scraps.insert(rng.randint(0, len(scraps)), f"{fact.text} ")
    return [(f"d{number}", "".join(scraps)) for number, scraps in enumerate(texts)]
