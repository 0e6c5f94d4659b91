"""What the real model is said to think of its own answer is what transformers computes of it."""

from __future__ import annotations

import httpx
import pytest
import torch

from gateway.tokenizer import Tokenizer
from tests.support.real_model import model_folder
from tests.support.server import Server

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
TOLERANCE = 0.05
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def exact_server() -> Server:
    with Server(["--dtype", "float32", "--kv-cache-dtype", "auto", "--quantization", "none"]) as running:
        yield running


def test_greedy_logprobs_are_those_of_transformers(exact_server: Server) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    fields = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 5}
    body = {"model": MODEL, "messages": QUESTION, **fields}
    answer = httpx.post(f"{exact_server.url}/v1/chat/completions", json=body, timeout=120).json()
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]

    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert len(prompt) == answer["usage"]["prompt_tokens"]
    reply = tokenizer(choice["message"]["content"], add_special_tokens=False)["input_ids"]
    assert len(reply) == len(entries)
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(dim=-1)
    spell = Tokenizer(model_folder() / "tokenizer.json").token_bytes
    for entry, token, row in zip(entries, reply, logprobs, strict=True):
        assert bytes(entry["bytes"]) == spell(token)
        assert entry["logprob"] == pytest.approx(row[token].item(), abs=TOLERANCE)
        assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(
            row.topk(5).values.tolist(), abs=TOLERANCE
        )
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"], "greedy takes the likeliest"


@pytest.mark.slow
def test_a_scored_prompt_is_what_transformers_says_whatever_was_cached(exact_server: Server) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "The ferry leaves at nine, and the ferry comes back at noon. " * 16
    fields = {"max_tokens": 0, "echo": True, "logprobs": 3}
    body = {"model": MODEL, "prompt": [text, text[:200]], **fields}
    httpx.post(f"{exact_server.url}/v1/completions", json={"model": MODEL, "prompt": text}, timeout=120)
    answer = httpx.post(f"{exact_server.url}/v1/completions", json=body, timeout=120)
    assert "cached=0; " in answer.headers["x-prefixgate-cache"]
    assert "reason=disabled; " in answer.headers["x-prefixgate-cache"]
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32).eval()
    for choice, prompt in zip(answer.json()["choices"], body["prompt"], strict=True):
        said = choice["logprobs"]
        assert choice["text"] == prompt == "".join(said["tokens"])
        tokens = torch.tensor(tokenizer(prompt)["input_ids"])
        with torch.inference_mode():
            logprobs = model(tokens[None]).logits[0, :-1].log_softmax(dim=-1)
        wanted = logprobs.gather(1, tokens[1:, None]).squeeze(1).tolist()
        assert said["token_logprobs"][0] is None
        assert said["token_logprobs"][1:] == pytest.approx(wanted, abs=TOLERANCE)
        best = [max(entry.values()) for entry in said["top_logprobs"][1:]]
        assert best == pytest.approx(logprobs.amax(dim=-1).tolist(), abs=TOLERANCE)


def test_a_bias_on_a_token_that_the_model_lacks_is_400(exact_server: Server) -> None:
    body = {"model": MODEL, "messages": QUESTION, "logit_bias": {"5": 1, "99999999": 1}}
    answer = httpx.post(f"{exact_server.url}/v1/chat/completions", json=body, timeout=120)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert "got token 99999999, wanted 0 to 49151" in answer.json()["error"]["message"]
