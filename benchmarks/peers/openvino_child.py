"""OpenVINO GenAI in process: continuous batching, prefix caching and a u8 KV cache, over the GGUF file itself.

Runs in an environment of its own that has `openvino-genai`.
"""

from __future__ import annotations

import openvino_genai as ov

from benchmarks.peers.child import read_work, run_in_child

_CACHE_GIB = 2
_STEP_TOKENS = 512


class OpenVINO:
    """A `BatchEngine`."""

    def __init__(self, model: str, concurrency: int) -> None:
        scheduler = ov.SchedulerConfig()
        scheduler.cache_size = _CACHE_GIB
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_batched_tokens = _STEP_TOKENS
        scheduler.max_num_seqs = max(8, concurrency)
        self._pipeline = ov.ContinuousBatchingPipeline(model, scheduler, "CPU", {"KV_CACHE_PRECISION": "u8"})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._live: dict[int, ov.GenerationHandle] = {}

    def add(self, index: int, prompt: str, max_tokens: int) -> int:
        """See `BatchEngine`."""
        config = ov.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        # the string is a rendered template already: its special tokens are in it
        tokens = self._tokenizer.encode(prompt, add_special_tokens=False).input_ids
        self._live[index] = self._pipeline.add_request(index, tokens, config)
        return int(tokens.shape[1])

    def step(self) -> dict[int, int]:
        """See `BatchEngine`."""
        self._pipeline.step()
        new: dict[int, int] = {}
        for index, handle in list(self._live.items()):
            while handle.can_read():
                new[index] = new.get(index, 0) + sum(len(output.generated_ids) for output in handle.read().values())
            if handle.get_status() != ov.GenerationStatus.RUNNING:
                del self._live[index]
        return new


def main() -> None:
    model, prompts, concurrency, max_tokens = read_work()
    run_in_child(OpenVINO(model, concurrency), prompts, concurrency, max_tokens)


if __name__ == "__main__":
    main()
