"""A worker process over the chain runner: the real loop, socket and supervision, without a model.

`python -m tests.support.chain_worker --endpoint …`; the model path of its config says how it behaves:
`chain` serves, `poor` has no memory for a step of more than 50 tokens, `refuse` cannot start, `crash` dies while it
starts.
"""

from __future__ import annotations

import os
import sys

from engine.batch import SchedulerOutput, StepOutput
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine
from engine.messages import EngineReady
from engine.worker import main
from tests.support.chain_runner import ChainRunner

COMMAND = (sys.executable, "-m", "tests.support.chain_worker")


class PoorRunner(ChainRunner):
    """Runs out of memory in large steps."""

    def execute(self, output: SchedulerOutput) -> StepOutput:
        """As a runner does."""
        if sum(part.num_new_tokens for part in output.requests) > 50:
            raise MemoryError
        return super().execute(output)


def build(config: EngineConfig) -> tuple[LLMEngine, EngineReady]:
    """As `engine.worker.build_engine`."""
    if config.model_path == "refuse":
        raise ConfigError("max_model_len: got 99, wanted at most 9")
    if config.model_path == "crash":
        os._exit(3)
    runner = (PoorRunner if config.model_path == "poor" else ChainRunner)(
        num_blocks=config.cache.num_blocks or 64, block_size=config.cache.block_size, step_seconds=0.002
    )
    engine = LLMEngine(config, runner)
    return engine, EngineReady(
        dtype="chain",
        device="cpu",
        max_model_len=min(runner.max_model_len, engine.cache.max_request_tokens()),
        block_size=config.cache.block_size,
        num_blocks=runner.num_blocks,
        hash_seed=engine.hash_seed,
        hash_epoch=engine.hash_epoch,
        namespace_fields={"model": "chain"},
        eos_token_ids=[0],
        kv_bytes_per_token=8,
        warnings=[],
    )


if __name__ == "__main__":
    sys.exit(main(build=build))
