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


def test_a_bias_on_a_token_that_the_model_lacks_is_400(exact_server: Server) -> None:
    body = {"model": MODEL, "messages": QUESTION, "logit_bias": {"5": 1, "99999999": 1}}
    answer = httpx.post(f"{exact_server.url}/v1/chat/completions", json=body, timeout=120)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert "got token 99999999, wanted 0 to 49151" in answer.json()["error"]["message"]
