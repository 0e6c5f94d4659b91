"""Prose, code, logs and tables to hide facts in: of the same people, places, sums and words as the facts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping

SEPARATORS: Mapping[str, str] = {"prose": " ", "mixed": " ", "code": "\n\n", "log": "\n", "table": "\n"}
"""Kinds of documents, and what stands behind a fact in one."""
_MANY = 10_000
_SLOT = re.compile(r"\{(\w+)\}")
_FIRST = (
    "Alba Bruno Chidi Dagny Emil Farah Goran Hanna Ines Jonas Kofi Leila Marta Nils Olga Pavel Rosa Sven Tariq Vera"
)
_LAST = (
    "Abebe Berg Castro Dahl Eriksen Fischer Gupta Haddad Ivanov Jensen Kowalski Lund Moreau Novak Okafor Prieto Quist "
    "Rossi Silva Tanaka Ueda Vargas Weber Xu Yilmaz Zeman Acosta Bauer Chen Dimitrov Engel Fontaine Greco Hoang Iqbal"
)
_TREES = (
    "Alder Ash Aspen Beech Birch Cedar Cherry Chestnut Dogwood Elder Elm Fir Hawthorn Hazel Holly Ivy Juniper Larch "
    "Laurel Linden Maple Mulberry Oak Olive Pine Poplar Quince Rowan Spruce Sycamore Walnut Willow Yew"
)
_GROUNDS = (
    "Bakery Barn Bridge Chapel Court Depot Farm Ferry Gate Hall Hospital House Lane Lodge Market Mill Museum Park Quay "
    "School Square Station Theatre Tower Wharf Yard"
)
_FIRM_FIRST = (
    "Aster Beacon Cobalt Delta Ember Falcon Granite Horizon Iris Juno Kestrel Lumen Meridian Nimbus Orion Pelican Quartz "
    "Raven Summit Tundra Umbra Vertex Westwind Zephyr"
)
_FIRM_LAST = (
    "Builders Cooperative Dairy Foods Freight Gardens Insurance Labs Logistics Metals Optics Partners Press Savings "
    "Textiles Timber Works"
)
_MONTHS = "January February March April May June July August September October November December"
_NOUNS = (
    "agreement archive barrier beam budget cable canal catalogue ceiling cellar chimney committee contract corridor "
    "crane delivery door drain drawing engine entrance estimate fence filter floor foundation garden generator heating "
    "inspection invoice kitchen ladder lamp laundry letter lift lock machine map meeting meter offer office orchard "
    "package painting path permit pipe plan platform pump railing record repair report roof room schedule shelf sign "
    "stairwell store survey switch tank tile timetable tool trench tunnel van ventilator wall warehouse water window"
)
_VERBED = (
    "checked cleaned closed counted delayed delivered described drawn emptied finished fitted found improved insured "
    "inspected lent listed lowered measured mended moved opened ordered painted photographed planned postponed praised "
    "rebuilt recorded removed repaired replaced reported returned sealed sold tested used widened"
)
_ADJECTIVES = "broken cheap cold damp dark dry early empty heavy late loud narrow new old plain quiet red rough small steep warm wide"
_CHINESE_NAMES = ("王李张刘陈杨赵黄周吴孙朱马胡", "海文晓建志丽春国秀玉", "燕明华平军红林梅强英")
_CHINESE_PLACES = (
    "青年中山和平东湖南门北苑长江滨海春江西岭白云红星金河石桥龙潭",
    "公园路口中学医院仓库车站市场码头花园广场大桥水厂",
)
_CHINESE_NOUNS = "会议 报告 设备 合同 管道 预算 图纸 工程 通知 电梯 屋顶 道路 材料 方案 问题 水泵 围墙 照明".split()  # noqa: SIM905
_CHINESE_VERBS = "检查 修理 讨论 推迟 更换 记录 批准 测量 清理 完成 重新安排 仔细核对".split()  # noqa: SIM905
_GERMAN_NOUNS = [
    "Bericht",
    "Dach",
    "Vertrag",
    "Sitzung",
    "Rechnung",
    "Leitung",
    "Brücke",
    "Halle",
    "Planung",
    "Lieferung",
    "Prüfung",
    "Pumpe",
    "Mauer",
]
_GERMAN_VERBED = "geprüft verschoben erneuert besprochen gemessen bestellt gereinigt repariert abgelehnt gelobt".split()  # noqa: SIM905
_CODE_WORDS = "account batch buffer cache client cursor entry event field frame group header index item job key limit node order page parcel queue record row session shard slot store task token user value worker".split()  # noqa: SIM905
_ROOMS = "boiler attic workshop pantry chapel sluice archive cloak linen engine reading store".split()  # noqa: SIM905
_COLORS = "amber blue brown crimson green grey indigo ivory lilac olive orange purple scarlet teal violet white".split()  # noqa: SIM905
_FOODS = "almonds celery crab eggs fennel garlic honey lentils mango mustard oysters parsley peanuts plums sesame soy".split()  # noqa: SIM905


class Writer:
    """Writes for one chat. What was given as an answer is never written again, so each answer stands in one place.

    Facts are made before the text around them: long texts use up the names.

    Args:
        rng: of the chat.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._written: set[str] = set()
        self._answers: set[str] = set()
        self._subjects: set[str] = set()

    def subject(self, kind: str, like: str = "") -> str:
        """Make a name that something is said about, of which nothing else is told.

        Args:
            kind: of name.
            like: begins with the same word where one is left, so that it is easily mistaken for it.
        """
        begins = like[: 3 if like.isascii() else 2]
        for attempt in range(_MANY):
            made = self._make(kind)
            is_alike = attempt > _MANY // 2 or made.startswith(begins)
            if is_alike and made not in self._subjects and made not in self._answers:
                self._subjects.add(made)
                self._written.add(made)
                return made
        raise ValueError(f"kind: got {kind!r}, wanted one of which something is left")

    def answer(self, kind: str) -> str:
        """Make what stands nowhere else in the chat."""
        for _ in range(_MANY):
            made = self._make(kind)
            if made not in self._written:
                self._written.add(made)
                self._answers.add(made)
                return made
        raise ValueError(f"kind: got {kind!r}, wanted one of which something is left")

    def any(self, kind: str) -> str:
        """Make one that is no answer."""
        while (made := self._make(kind)) in self._answers:
            pass
        self._written.add(made)
        return made

    def document(self, kind: str, num_chars: int) -> list[str]:
        """Write a text of a kind of `SEPARATORS`, or `chinese`, in pieces between which more can be put."""
        write = {
            "prose": lambda: self._paragraph(self.sentence),
            "chinese": lambda: self._paragraph(self._chinese),
            "mixed": lambda: self._paragraph(self.rng.choice((self.sentence, self._german, self._chinese))),
            "code": lambda: [self._function()],
            "log": lambda: [self._log_line()],
            "table": lambda: [self._row()],
        }[kind]
        pieces: list[str] = []
        size = 0
        while size < num_chars:
            more = write()
            pieces += more
            size += sum(map(len, more))
        return pieces

    def sentence(self) -> str:
        """Write a sentence of a report or of small talk."""
        return self._filled(self.rng.choice(_SENTENCES)) + " "

    def _german(self) -> str:
        return self._filled(self.rng.choice(_GERMAN_SENTENCES)) + " "

    def _chinese(self) -> str:
        return self._filled(self.rng.choice(_CHINESE_SENTENCES))

    def _paragraph(self, write: Callable[[], str]) -> list[str]:
        sentences = [write() for _ in range(self.rng.randint(3, 7))]
        return [*sentences[:-1], sentences[-1].rstrip() + "\n\n"]

    def _filled(self, template: str) -> str:
        text = _SLOT.sub(lambda slot: self.any(slot[1]), template)
        return text[0].upper() + text[1:]

    def _function(self) -> str:
        first, second, third = (self.any("word") for _ in range(3))
        return (
            f"def {self.rng.choice(_CODE_VERBS)}_{first}_{second}({first}, {third}):\n"
            f'    """Keeps the {second} of each {first} in the {third}."""\n'
            f"    if {first}.{second} > {self.any('number')}:\n"
            f"        return {third}.get({first}.{second}, default={self.any('number')})\n"
            f"    {third}[{first}.key] = {first}.{second}\n\n"
        )

    def _log_line(self) -> str:
        rng = self.rng
        time = f"2026-03-{rng.randint(10, 28)}T{rng.randint(10, 23)}:{rng.randint(10, 59)}:{rng.randint(10, 59)}"
        level = rng.choice(("INFO", "WARN", "DEBUG", "ERROR"))
        return (
            f"{time} {level} {self.any('word')} {self.any('service')} {self.any('number')} {rng.choice(_LOG_WORDS)}\n"
        )

    def _row(self) -> str:
        row = {"id": self.any("number"), "place": self.any("place"), "note": self.sentence().strip()}
        return json.dumps({**row, "owner": self.any("person")}) + "\n"

    def _make(self, kind: str) -> str:
        return _MAKERS[kind](self.rng)


def _of(words: str) -> list[str]:
    return words.split()


def _joined(*banks: str) -> Callable[[random.Random], str]:
    lists = [_of(bank) for bank in banks]
    return lambda rng: " ".join(rng.choice(bank) for bank in lists)


def _one(words: list[str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(words)


def _pair(rng: random.Random, bank: str) -> str:
    start = 2 * rng.randrange(len(bank) // 2)
    return bank[start : start + 2]


_MAKERS: Mapping[str, Callable[[random.Random], str]] = {
    "person": _joined(_FIRST, _LAST),
    "place": _joined(_TREES, _GROUNDS),
    "firm": _joined(_FIRM_FIRST, _FIRM_LAST),
    "noun": _one(_of(_NOUNS)),
    "verbed": _one(_of(_VERBED)),
    "adjective": _one(_of(_ADJECTIVES)),
    "how": _one(
        ["carefully", "quickly", "quietly", "slowly", "twice", "overnight", "by hand", "in the end", "last spring"]
    ),
    "amount": lambda rng: f"{rng.randint(11, 98)},{rng.randint(101, 989)} euros",
    "number": lambda rng: str(rng.randint(10_211, 98_989)),
    "code": lambda rng: (
        f"{rng.choice('BCDFGHKLMNPQRSTVXZ')}{rng.choice('BCDFGHKLMNPQRSTVXZ')}-{rng.randint(1021, 9898)}"
    ),
    "height": lambda rng: f"{rng.randint(101, 989)} centimetres",
    "date": lambda rng: f"{rng.randint(1, 28)} {rng.choice(_of(_MONTHS))} {rng.randint(2021, 2031)}",
    "room": lambda rng: f"the {rng.choice(_COLORS)} {rng.choice(_ROOMS)} room",
    "foods": lambda rng: " and ".join(rng.sample(_FOODS, 2)),
    "style": lambda rng: f"{rng.choice(_COLORS)} {rng.choice(('capitals', 'tables', 'bullets', 'boxes', 'footnotes'))}",
    "service": lambda rng: f"{rng.choice(_CODE_WORDS)}_{rng.choice(_CODE_WORDS)}",
    "word": _one(_CODE_WORDS),
    "zh_person": lambda rng: "".join(map(rng.choice, _CHINESE_NAMES)),
    "zh_place": lambda rng: "".join(_pair(rng, bank) for bank in _CHINESE_PLACES),
    "zh_date": lambda rng: f"{rng.randint(2021, 2031)}年{rng.randint(1, 12)}月{rng.randint(1, 28)}日",
    "zh_noun": _one(_CHINESE_NOUNS),
    "zh_verb": _one(_CHINESE_VERBS),
    "de_noun": _one(_GERMAN_NOUNS),
    "de_verbed": _one(_GERMAN_VERBED),
}

_CODE_VERBS = "add apply check drop find load merge move read retry save send split store trim".split()  # noqa: SIM905
_LOG_WORDS = ("accepted", "closed", "took 41 ms", "queued behind 3 others", "not in the cache", "sent again", "done")
_SENTENCES = (
    "the {adjective} {noun} near {place} was {verbed} before the {noun} arrived.",
    "nobody at {firm} had expected that the {noun} would be {verbed} {how}.",
    "{person} wrote that the {noun} and the {noun} had both been {verbed}.",
    "about {amount} went into the {noun}, most of it for a {adjective} {noun}.",
    "since {date} the {noun} at {place} has been {verbed} {how}.",
    "it was {person} who asked whether the {noun} could be {verbed} without the {noun}.",
    "the {noun} was {adjective}, the {noun} was {adjective}, and the rest was {verbed} {how}.",
    "according to {firm}, the {noun} of {place} is {adjective} and should be {verbed}.",
    "a {adjective} {noun} costs less than a {adjective} {noun}, if it is {verbed} {how}.",
    "on {date} the {noun} was {verbed} and the {noun} came back {adjective}.",
    "they {verbed} the {noun}, and then, {how}, the {noun} behind {place}.",
    "in the opinion of {person} the {noun} matters more than the {noun}.",
    "the code of the {noun} was changed, and the {noun} number {number} was {verbed}.",
    "between {place} and {place} there is a {adjective} {noun} that was never {verbed}.",
)
_GERMAN_SENTENCES = (
    "Der Zustand von {place} wurde am {date} {de_verbed} und danach noch einmal {de_verbed}.",
    "{person} hat gesagt, dass die {de_noun} später {de_verbed} wird als die {de_noun}.",
    "Am Ende wurde für {place} nichts {de_verbed}, obwohl {firm} es wollte.",
    "Die {de_noun} bei {place} kostet etwa {amount} und ist noch nicht {de_verbed}.",
)
_CHINESE_SENTENCES = (
    "{zh_place}的{zh_noun}已经{zh_verb}，但是{zh_noun}还没有{zh_verb}。",
    "{zh_person}认为{zh_noun}比{zh_noun}更重要，需要{zh_verb}。",
    "我们在{zh_date}{zh_verb}了{zh_place}的{zh_noun}。",
    "关于{zh_place}的{zh_noun}，{zh_person}要求大家{zh_verb}。",
)
