"""An engine in this process, made from the flags of `serve` as a worker's would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from gateway.backends.local.models import engine_config, resolve_model
from gateway.options import parse_options


def config_of(flags: Sequence[str]) -> EngineConfig:
    """Return what a worker would be started with; fetches the model where it is missing."""
    settings = parse_options(flags)
    return engine_config(settings, resolve_model(settings))


def build_engine(config: EngineConfig, runner: Any) -> LLMEngine:
    """Return an engine over a model runner, or what stands in for one, with an empty prefix cache."""
    return LLMEngine(replace(config, scheduler=replace(config.scheduler, max_num_seqs=runner.max_num_seqs)), runner)
