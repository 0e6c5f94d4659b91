"""Do the normalizer's rules change answers? Each safe rule that changes what the model sees, against its noise floor.

python -m benchmarks.rule_answers [RULE …] [--questions 8] [--tokens 16]

For every rule: questions in a form that the rule changes, asked raw and canonical. The model's greedy answer to the raw
prompt is given to both, token by token: how often is the likeliest next token the same, and how far apart are the
probabilities (KL, nats)? The floor is the same comparison between two raw forms that mean the same: what clients have
today from one request to the next. Teacher-forced logits of the real 135M model in float32 (transformers on the served
weights), so one early difference does not count for all that follows.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks import machine
from gateway.chat_request import conversation_of
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.support.real_model import model_folder

Body = dict[str, Any]

TEMPLATE = """\
{% if tools %}<|im_start|>system
You may call these tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SYSTEM = (
    "You help the readers of a town library.\nThe library opens at nine and closes at five.\nAnswer in one sentence."
)
QUESTIONS = [
    "When can I come?",
    "Name a river in France.",
    "Is it open at six?",
    "What is a library for?",
    "How long may I stay if I come at two?",
    "Who wrote Hamlet?",
    "Tell me a fact about the moon.",
    "Which tool tells whether a book is out?",
    "What is seven plus five?",
    "Say good morning in Spanish.",
    "Which animal is on the cover of a book on bees?",
    "Do I need a card?",
]


def tool(name: str, about: str) -> Body:
    properties = {"title": {"type": "string", "description": "of the book"}, "days": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["title", "days"]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = [tool("on_loan", "Whether a book is out."), tool("hold", "Keeps a book."), tool("shelf", "Where a book is.")]


def with_system(change: Callable[[str], str]) -> Callable[[Body], None]:
    def apply(body: Body) -> None:
        body["messages"][0]["content"] = change(body["messages"][0]["content"])

    return apply


def with_tools(change: Callable[[Body], None]) -> Callable[[Body], None]:
    def apply(body: Body) -> None:
        for entry in body["tools"]:
            change(entry)

    return apply


def reverse_schema(entry: Body) -> None:
    entry["function"]["parameters"] = dict(reversed(entry["function"]["parameters"].items()))


def reverse_all(entry: Body) -> None:
    reverse_schema(entry)
    entry["function"] = dict(reversed(entry["function"].items()))


def require(*names: str) -> Callable[[Body], None]:
    def apply(entry: Body) -> None:
        parameters = entry["function"]["parameters"]
        parameters["properties"]["note"] = {"type": "string"}
        parameters["required"] = list(names)

    return with_tools(apply)


def ordered(*names: str) -> Callable[[Body], None]:
    return lambda body: body["tools"].sort(key=lambda entry: names.index(entry["function"]["name"]))


def answered(*names: str) -> Callable[[Body], None]:
    """Three calls at once, and their results in this order."""
    found = {"on_loan": "no", "shelf": "4", "hold": "kept"}

    def apply(body: Body) -> None:
        calls = [
            {"id": name, "type": "function", "function": {"name": name, "arguments": '{"title": "Emma"}'}}
            for name in found
        ]
        results = [{"role": "tool", "tool_call_id": name, "content": found[name]} for name in names]
        body["messages"] += [{"role": "assistant", "content": None, "tool_calls": calls}, *results]

    return apply


def header(digest: str) -> Callable[[Body], None]:
    line = f"x-anthropic-billing-header: cc_version=2.0.{digest}; cc_entrypoint=cli; cch={digest};\n"
    return with_system(lambda text: line + text)


def marked(body: Body) -> None:
    body["tools"][-1]["cache_control"] = {"type": "ephemeral"}


RULES: dict[str, tuple[Callable[[Body], None], Callable[[Body], None]]] = {
    "strip_client_header": (header("1ab"), header("9fe")),
    "drop_leading_bom": (with_system(lambda text: "\ufeff" + text), with_system(lambda text: "\ufeff\ufeff" + text)),
    "trim_end_of_system": (with_system(lambda text: text + " \n\n"), with_system(lambda text: text + "\n")),
    "crlf_to_lf_system": (
        with_system(lambda text: text.replace("\n", "\r\n")),
        with_system(lambda text: text.replace("\n", "\r\n", 1)),
    ),
    "strip_cache_markers": (with_tools(lambda entry: entry.update(cache_control={"type": "ephemeral"})), marked),
    "drop_unset_tool_fields": (
        with_tools(lambda entry: entry["function"].update(strict=None)),
        with_tools(lambda entry: entry.update(defer_loading=None)),
    ),
    "canonical_schema_keywords": (with_tools(reverse_all), with_tools(reverse_schema)),
    "sort_set_like_arrays": (require("title", "note", "days"), require("note", "title", "days")),
    "canonical_tool_order": (ordered("shelf", "on_loan", "hold"), ordered("on_loan", "shelf", "hold")),
    "order_tool_results_by_call": (answered("shelf", "hold", "on_loan"), answered("shelf", "on_loan", "hold")),
}
"""Rule -> two ways to make a body that it brings into one canonical form."""
_ABOUT_TEXT = 4
"""The first ones; the others need tools."""


@dataclass(frozen=True)
class Likeness:
    """Of two prompts, by the probabilities of the next tokens."""

    same_first: float
    """Share of positions with the same likeliest token."""
    kl: float
    """Mean over positions, nats."""


class Judge:
    """The model, and the tokens of bodies for it."""

    def __init__(self) -> None:
        folder = model_folder()
        tokenizer = Tokenizer(folder / "tokenizer.json")
        self._renderer = PromptRenderer(ChatTemplate(TEMPLATE, special_tokens={}), tokenizer)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._off = {rule.name: Choice(Mode.OFF) for rule in built_in_rules().rules}

    def tokens(self, body: Body, *rules: str) -> list[int]:
        """Render with these rules alone."""
        choices = {**self._off, **dict.fromkeys(rules, Choice(Mode.ON))}
        canonical = built_in_rules().rule_set(choices).normalize(conversation_of(body)).conversation
        return list(self._renderer.token_ids(canonical).tolist())

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], torch.Tensor]:
        """Answer greedily. Returns: tokens, and their log probabilities as in `log_probs`."""
        ids = torch.tensor([prompt])
        made = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return list(made.sequences[0, len(prompt) :].tolist()), torch.log_softmax(torch.cat(made.logits), dim=-1)

    @torch.inference_mode()
    def log_probs(self, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
        """Of the tokens after each position of the answer: [num_tokens, vocabulary]."""
        ids = torch.tensor([[*prompt, *answer[:-1]]])
        logits = self._model(ids, logits_to_keep=len(answer)).logits[0]
        return torch.log_softmax(logits, dim=-1)


def likeness(first: torch.Tensor, other: torch.Tensor) -> Likeness:
    same = (first.argmax(-1) == other.argmax(-1)).float().mean().item()
    return Likeness(same, (first.exp() * (first - other)).sum(-1).mean().item())


def mean(values: Sequence[Likeness]) -> Likeness:
    return Likeness(
        *(sum(column) / len(values) for column in zip(*((v.same_first, v.kl) for v in values), strict=True))
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", choices=[*RULES, []], metavar="RULE")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    print(machine.describe())
    print(f"{args.questions} questions, {args.tokens} tokens each\n")
    print(f"{'rule':<28} {'same first':>10} {'floor':>7} {'KL':>8} {'floor':>8}")
    judge = Judge()
    for number, (rule, (make_raw, make_other)) in enumerate(RULES.items()):
        if args.rules and rule not in args.rules:
            continue
        effects, floors = [], []
        for question in QUESTIONS[: args.questions]:
            body: Body = {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]}
            if number >= _ABOUT_TEXT:
                body["tools"] = copy.deepcopy(TOOLS)
            edited = copy.deepcopy(body)
            make_raw(body)
            make_other(edited)
            raw, canonical, other = judge.tokens(body), judge.tokens(body, rule), judge.tokens(edited)
            assert raw != canonical, f"{rule} changed nothing"
            answer, said = judge.answer(raw, args.tokens)
            effects.append(likeness(said, judge.log_probs(canonical, answer)))
            floors.append(likeness(said, judge.log_probs(other, answer)))
        effect, floor = mean(effects), mean(floors)
        print(
            f"{rule:<28} {effect.same_first:>10.1%} {floor.same_first:>7.1%} {effect.kl:>8.4f} {floor.kl:>8.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
