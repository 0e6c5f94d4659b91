"""Facts that have one answer each, questions that ask for it in other words, and what is easily mistaken for them.

What makes them hard: the subject of a fact is spoken of elsewhere too, in the words of the question but without the
answer; other subjects that begin with the same word have facts of the same form; some questions share nothing but the
subject's name with the fact, one kind asks in English about German text, and some are in Chinese.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.context_texts import Writer


@dataclass(frozen=True)
class Fact:
    """One thing that is said once."""

    text: str
    question: str
    answer: str
    """As it stands in the text, and nowhere else in the chat before the question."""
    distractors: Sequence[str]


@dataclass(frozen=True)
class Form:
    """How one kind of fact is put."""

    subject: str
    """What kind of name it is about."""
    answer: str
    """What kind of name it tells."""
    text: str
    question: str
    mention: str
    """Of the subject, without the answer."""

    def make(self, writer: Writer) -> Fact:
        """Fill it in, with two mentions and two facts of the same form about others."""
        subject, answer = writer.subject(self.subject), writer.answer(self.answer)
        rivals = [
            self.text.format(s=writer.subject(self.subject, like=subject), a=writer.any(self.answer)) for _ in range(2)
        ]
        mention = self.mention.format(s=subject)
        text, question = self.text.format(s=subject, a=answer), self.question.format(s=subject)
        return Fact(text, question, answer, (mention, *rivals))


PROSE = (
    Form(
        "place",
        "amount",
        "Repairs to the roof of {s} came to {a}, which the insurer paid.",
        "How much did it cost to fix the roof of {s}?",
        "The roof of {s} was inspected twice before anything was fixed.",
    ),
    Form(
        "place",
        "person",
        "{a} signed off the survey of {s} after a second visit.",
        "Who approved the survey of {s}?",
        "The survey of {s} took longer than the committee had approved.",
    ),
    Form(
        "place",
        "date",
        "The lease of {s} runs out on {a} and will not be renewed.",
        "When does the lease for {s} end?",
        "A lease such as that of {s} is rare in this town.",
    ),
    Form(
        "place",
        "code",
        "Whoever comes to {s} at night must enter {a} at the side door.",
        "Which code opens {s} at night?",
        "At night {s} is closed, and the code of the main door was changed.",
    ),
    Form(
        "place",
        "number",
        "In the spring check the crew counted {a} broken tiles at {s}.",
        "How many tiles at {s} turned out to be broken?",
        "Some tiles at {s} were bought second-hand, so many of them are of odd sizes.",
    ),
    Form(
        "place",
        "firm",
        "The cement for {s} came two weeks late because {a} had held it back.",
        "Which company was to blame for the late cement at {s}?",
        "Late in the year {s} needed cement again, from whatever company had any.",
    ),
    Form(
        "place",
        "height",
        "When the pumps failed, the water under {s} stood at {a}.",
        "How high did the water at {s} get after the pump failure?",
        "The pumps and the water meter of {s} are read once a year.",
    ),
    Form(
        "place",
        "room",
        "Of all the rooms in {s}, asbestos was found only in {a}.",
        "Where in {s} did they discover asbestos?",
        "It had long been said that {s} was free of asbestos.",
    ),
)
MIXED = (
    Form(
        "zh_place",
        "zh_person",
        "{s}的改造工程最后交给{a}负责。",
        "{s}的改造由谁负责？",
        "很多居民都在谈论{s}的改造。",
    ),
    Form("zh_place", "number", "{s}今年的维修预算是{a}元。", "{s}的维修预算有多少？", "{s}去年没有维修预算。"),
    Form("zh_place", "code", "{s}仓库的门锁密码改成了{a}。", "{s}的仓库现在用什么密码？", "{s}的仓库下个月要搬走。"),
    Form("zh_place", "zh_date", "{s}的开工日期定在{a}。", "{s}哪天开工？", "{s}什么时候开工，大家意见不一。"),
    Form(
        "place",
        "amount",
        "Die Sanierung von {s} hat am Ende {a} gekostet.",
        "Wie viel kostete die Sanierung von {s}?",
        "Über die Sanierung von {s} wurde lange gestritten.",
    ),
    Form(
        "place",
        "person",
        "Für die Schlüssel von {s} ist seit dem Herbst {a} zuständig.",
        "Who looks after the keys of {s}?",
        "Die Schlüssel von {s} hängen im Flur.",
    ),
    *PROSE[:4],
)
CODE = (
    Form(
        "service",
        "number",
        "def retry_{s}(call):\n    for attempt in range({a}):\n        if call():\n            return attempt",
        "After how many attempts does retry_{s} give up?",
        "# retry_{s} must not be called twice: attempts are counted elsewhere",
    ),
    Form(
        "service",
        "number",
        "\n{s}_timeout_ms = {a}  # see the incident of last May",
        "What is the timeout of the {s}, in milliseconds?",
        "assert {s}_timeout_ms > 0",
    ),
    Form(
        "service",
        "code",
        '\n{s}_schema = "{a}"\n"""Must equal what the database says."""',
        "Which schema version does {s} need?",
        "load_schema({s}_schema, strict=True)",
    ),
)
LOGS = (
    Form(
        "number",
        "firm",
        "2026-03-11T09:14:55 ERROR payments transfer {s} was refused by {a}",
        "Which bank refused transfer {s}?",
        "2026-03-11T09:14:51 INFO payments transfer {s} was sent",
    ),
    Form(
        "service",
        "code",
        "2026-03-12T18:01:07 WARN scheduler job {s} skipped, its lease is held by node {a}",
        "Which node had the lease of the job {s} when it was skipped?",
        "2026-03-12T18:03:07 INFO scheduler job {s} is due again",
    ),
    Form(
        "service",
        "height",
        "2026-03-13T04:22:31 ERROR sensors {s} reported {a}, alarm raised",
        "What did {s} report when the alarm went off?",
        "2026-03-13T04:22:30 INFO sensors {s} is read every second, alarm off",
    ),
)
TABLES = (
    Form(
        "number",
        "person",
        '{{"order": "{s}", "state": "open", "handled_by": "{a}", "items": 3}}',
        "Who handles order {s}?",
        '{{"note": "order {s} was sent to the wrong desk first"}}',
    ),
    Form(
        "person",
        "code",
        '{{"customer": "{s}", "contract": "{a}", "since": 2019}}',
        "What is the contract of the customer {s}?",
        '{{"note": "{s} called about the contract"}}',
    ),
    *LOGS[:1],
    *PROSE[:3],
)
TOLD = (
    Form(
        "place",
        "firm",
        "Then let's settle it: {a} does the catering for the party at {s}.",
        "Whom did we choose for the catering at {s}?",
        "I still don't know how many people come to {s}, catering or not.",
    ),
    Form(
        "person",
        "foods",
        "Please remember that {s} must not eat {a}.",
        "What should I leave out when I cook for {s}?",
        "I would love to cook for {s} one day.",
    ),
    Form(
        "place",
        "date",
        "I have to hand in the application for {s} by {a} at the latest.",
        "What is my deadline for the {s} application?",
        "The application for {s} has eleven pages.",
    ),
    Form(
        "firm",
        "code",
        "My membership number at {s} is {a}.",
        "Which membership number do I have with {s}?",
        "I pay far too much for the membership at {s}.",
    ),
    Form(
        "place",
        "amount",
        "We can't spend more than {a} on {s}, that is what we agreed.",
        "How much money may {s} take?",
        "You know how much I like {s}.",
    ),
    Form(
        "person",
        "firm",
        "{s} starts working for {a} next month.",
        "Where does {s} have a new job?",
        "{s} told me not to worry about the new job.",
    ),
    Form(
        "firm",
        "style",
        "When you write to {s} for me, I prefer {a}.",
        "How do I like the letters to {s} to look?",
        "The letters that {s} sends me look terrible.",
    ),
    Form(
        "zh_person",
        "zh_place",
        "对了，我的同事{s}搬到{a}附近去了。",
        "我的同事{s}现在住在哪里？",
        "我昨天和{s}一起吃饭了。",
    ),
    Form(
        "zh_place",
        "zh_date",
        "{s}的会议我们就定在{a}吧。",
        "{s}的会议是哪一天？",
        "{s}的会议上次开得太久。",
    ),
)
ANSWERED = Form(
    "place",
    "firm",
    "Of the offers for {s} the one from {a} is the cheapest.",
    "Whose offer for {s} costs least?",
    "There may be more offers for {s} next week.",
)
"""Something that the assistant said."""
