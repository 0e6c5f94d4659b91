"""The continuous batching of transformers in process, in bfloat16, over the safetensors made of the same GGUF."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.child import read_work, run_in_child

_NO_EOS = -1
_PAGE_TOKENS = 256
_CHAT_TOKENS = 2048
_STEP_TOKENS = 512
_TIMEOUT = 600


class Transformers:
    """A `BatchEngine`."""

    def __init__(self, model: str, concurrency: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa")
        # without a GPU it cannot size these itself
        config = ContinuousBatchingConfig(
            page_size=_PAGE_TOKENS,
            num_blocks=concurrency * _CHAT_TOKENS // _PAGE_TOKENS,
            max_batch_tokens=_STEP_TOKENS,
            max_requests_per_batch=concurrency,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=_NO_EOS, pad_token_id=0)
        self._manager = loaded.eval().init_continuous_batching(greedy, config)
        self._manager.start()
        self._counts: dict[int, int] = {}

    def add(self, index: int, prompt: str, max_tokens: int) -> int:
        """See `BatchEngine`."""
        tokens = self._tokenizer(prompt, add_special_tokens=False).input_ids
        self._manager.add_request(
            tokens, request_id=str(index), max_new_tokens=max_tokens, streaming=True, eos_token_id=_NO_EOS
        )
        self._counts[index] = 0
        return len(tokens)

    def step(self) -> dict[int, int]:
        """See `BatchEngine`."""
        result = self._manager.get_result(timeout=_TIMEOUT)
        if result is None or result.error:
            raise RuntimeError(result.error if result else "its generation thread ended")
        index, count = int(result.request_id), len(result.generated_tokens)
        new, self._counts[index] = count - self._counts[index], count
        return {index: new}

    def stop(self) -> None:
        """End its thread."""
        self._manager.stop(block=True)


def main() -> None:
    model, prompts, concurrency, max_tokens = read_work()
    engine = Transformers(model, concurrency)
    try:
        run_in_child(engine, prompts, concurrency, max_tokens)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
