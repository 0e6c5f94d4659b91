"""Every option of `prefixgate serve`: one model for flags, environment and file, in this order, and its only reader.

A field's docstring is its `--help`. Values that go on to the engine are checked again there; here the error names the
flag. The commands that talk to a running gateway have a small model of their own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.config_file import read_config_file
from gateway.limits.limits import LIMIT_NAMES, Limits
from gateway.log import LogFormat
from gateway.normalize.memory import MAX_BYTES
from gateway.upstream.options import HeaderValue, Upstreams

BLOCK_SIZES = (8, 16, 32, 64)
KVCacheDtype = Literal[
    "auto",
    "int8/hadamard",
    "int8/per_token",
    "int8/per_group_32",
    "int8/per_group_64",
    "int8/per_group_128",
    "int8/per_channel",
]
_KV_SKIP_LAYERS = re.compile(r"none|auto|((first|last):)?[0-9]+(,((first|last):)?[0-9]+)*")

MIN_KEY_CHARS = 8
MIN_PEPPER_CHARS = 16
ENVIRONMENT_PREFIX = "PREFIXGATE_"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b)")
_UNITS = {
    f"{prefix}{unit}": base**power
    for unit, base in (("ib", 1024), ("b", 1000))
    for power, prefix in enumerate("kmgt", 1)
}
_DATABASE_URL = re.compile(r"(sqlite\+aiosqlite:///(?!:memory:)[^?]+|postgresql\+psycopg://.*)")
_GATEWAY_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_URL_PASSWORDS = re.compile(r"(?<=://)([^:@/]*):.*@|(?<=password=)[^&]*")


def _none_is_zero(value: object) -> object:
    return 0 if isinstance(value, str) and value.lower() == "none" else value


def _bytes(value: object) -> object:
    """Read 2GiB, 2GB or 500MiB. A bare number is refused: nobody knows whether it means bytes or GiB."""
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, str) or (match := _SIZE.fullmatch(value.strip().lower())) is None:
        raise ValueError("a size with its unit, such as 2GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])


def _skip_layers(value: str) -> str:
    if _KV_SKIP_LAYERS.fullmatch(value) is None:
        raise ValueError("none, auto, or a list such as 0,5 or first:1,last:4")
    return value


def _usable_key(value: SecretStr) -> SecretStr:
    key = value.get_secret_value()
    # Others do not survive a header: nobody could ever send them.
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ValueError(f"at least {MIN_KEY_CHARS} characters, printable ASCII, no space at the ends")
    return value


AdminKey = Annotated[SecretStr, AfterValidator(_usable_key)]


class Settings(BaseSettings):
    """Options of one gateway and its engine."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    model: str = "smollm2-135m-instruct"
    """What to serve: an alias, a folder, a GGUF file or a hub id."""
    upstream: Upstreams = ()
    """Base URL of an OpenAI-compatible server to stand in front of, in place of a model of our own; given again, one more
    of the same models. In the file also with a key and headers of its own."""
    upstream_key: HeaderValue | None = None
    """Key for the upstreams that have none of their own in the file."""
    tokenizer: Path | None = None
    """Folder with tokenizer.json and chat template of the model that the upstreams serve: with it, what they reuse is
    predicted and explained, and what the rules save is counted."""
    upstream_connect_timeout: float = Field(5.0, gt=0, allow_inf_nan=False)
    """Seconds for a connection to an upstream; then the next one is tried."""
    upstream_first_byte_timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds until an upstream's answer begins; one that is not streamed begins when it is complete."""
    upstream_idle_timeout: float = Field(120.0, gt=0, allow_inf_nan=False)
    """Seconds between two pieces of an upstream's answer."""
    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only a loopback address answers."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    config: Path | None = None
    """YAML file with options, named as here without the dashes in front; flags and environment win over it."""
    db: str | None = None
    """Async SQLAlchemy URL: sqlite+aiosqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME; by default a
    SQLite file in the user's data folder."""
    model_dir: Path | None = None
    """Folder for pulled models; by default in the user's cache folder."""
    chat_template: Path | None = None
    """File with a jinja chat template to use in place of the model's."""
    tool_template: Literal["hermes"] | None = None
    """How to write tools, calls and results into the turns of a chat template that does not render them itself."""
    tool_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = "auto"
    """How the model writes calls of tools; by default as its tokenizer's response template says, else as its chat template
    does. none: they stay text."""
    reasoning: Literal["auto", "none"] = "auto"
    """Whether to tell what stands in <think> at the beginning of an answer from its text, where the chat template knows
    such blocks; none: it stays text."""
    model_impl: Literal["auto", "lean", "transformers"] = "auto"
    """What computes the model: our own lean forward, the modules of transformers, or lean for the models it knows."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto is bfloat16 where the device is fast at it, else float32."""
    quantization: Literal["auto", "none", "int8"] = "auto"
    """Format of the weights; int8 takes half of 16 bits. Auto is int8 on a CPU that is fast at it, unless a dtype is
    asked for."""
    enforce_eager: bool = False
    """On a GPU, launch decode steps kernel by kernel and not as CUDA graphs: slower, starts sooner, takes less memory."""
    block_size: int = 32
    """Tokens in a block of the KV cache: 8, 16, 32 or 64."""
    num_blocks: int | None = Field(None, ge=2)
    """Blocks in the KV cache; by default what fits into memory."""
    kv_cache_memory: Annotated[int | None, BeforeValidator(_bytes)] = None
    """Memory of the KV cache, such as 2GiB; by default sized from the memory that is free."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """On a GPU: most of its memory that may be in use, by this program and others."""
    max_model_len: int | None = Field(None, ge=1)
    """Most tokens of prompt and answer together; by default what model and cache allow."""
    max_num_seqs: int | None = Field(None, ge=1)
    """Most requests that run at the same time; by default the chats of 2,048 tokens that fit into the KV cache."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Most tokens in one step of the engine."""
    prefill_chunk: Annotated[int, BeforeValidator(_none_is_zero)] = Field(512, ge=0)
    """Most prompt tokens of one request in one step; none or 0 leaves only the step's own limit."""
    long_prefill_token_threshold: int = Field(512, ge=0)
    """Prompts with more tokens to compute than this do not hold up shorter ones; 0 treats all alike."""
    max_step_seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Longest step, in seconds, that prompts are cut for: what a running answer waits for its next token at most, as far
    as measured steps tell. By default what is efficient on this machine; 0 cuts by tokens only."""
    deterministic: bool = False
    """Compute an answer's bits from its request alone, whatever hits, chunks, preemption or other requests there are;
    steps take longer."""
    kv_cache_dtype: KVCacheDtype = "int8/hadamard"
    """Format of the KV cache; auto is the model's type, int8 takes about half of 16 bits."""
    kv_skip_layers: Annotated[str, AfterValidator(_skip_layers)] = "auto"
    """Layers that an int8 KV cache leaves unquantized: none, a list such as 0,5 or first:1,last:4, or auto, which looks
    for key outliers at start."""
    max_shared_ratio: float = Field(0.5, ge=0, le=1)
    """Most of the KV cache that requests may have in common use."""
    max_pinned_ratio: float = Field(0.25, ge=0, le=1)
    """Most of the KV cache that may be pinned; at most the shared ratio."""
    growth_reserve: int = Field(256, ge=0)
    """Tokens of growth kept free for every running request."""
    admin_key: AdminKey | None = None
    """Key of the admin API, which is off without one. No flag, for flags show in process lists."""
    pepper: SecretStr | None = None
    """Secret under which API keys are hashed; by default in a file beside the SQLite database. No flag either."""
    store_content: bool = False
    """Keep the bodies of requests and the text of answers in the request log."""
    request_log_rows: int = Field(1_000_000, ge=0)
    """Most rows of the request log; the oldest go."""
    request_log_days: float = Field(30.0, gt=0)
    """Days after which a row of the request log goes."""
    log_format: LogFormat = "text"
    """How the log is written to stderr: text for people, or json, one object a line."""
    warm_budget: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Seconds for which /ready waits until registered prompts are in the cache, at start and after each restart of the
    engine; the rest is warmed while serving."""
    turn_memory: Annotated[int, BeforeValidator(_bytes)] = Field(MAX_BYTES, ge=0)
    """Memory for answers that were returned, such as 64MiB, from which echo repair gives them back; 0B remembers none."""
    context_policy: Literal["off", "audit", "on"] = "off"
    """Whether long chats are cut to fit, where a tenant, route or registered prompt says nothing else: on, off, or audit,
    which changes nothing and reports what would be cut."""
    accounting_sampling: float = Field(0.05, ge=0, le=1, allow_inf_nan=False)
    """Share of the families of prompts (a tenant's that begin with the same block) on which it is counted what each
    rule saves; 0: none, and no figures."""
    limit_requests_per_minute: int | None = Field(None, ge=1)
    """Most requests of a tenant in a minute, where the tenant has no limit of its own; by default any number. A gateway
    counts those that come to it."""
    limit_requests_per_day: int | None = Field(None, ge=1)
    """Most requests of a tenant in a day, likewise."""
    limit_tokens_per_minute: int | None = Field(None, ge=1)
    """Most tokens of a tenant in a minute, of prompts and answers together, likewise."""
    limit_tokens_per_day: int | None = Field(None, ge=1)
    """Most tokens of a tenant in a day, likewise."""
    limit_concurrency: int | None = Field(None, ge=1)
    """Most requests of a tenant at the same time, likewise."""
    heartbeat_timeout: float = Field(60.0, gt=0)
    """Seconds without any word from the engine before it is restarted."""
    start_timeout: float = Field(600.0, gt=0)
    """Seconds the engine may take to load the model."""

    @field_validator("block_size")
    @classmethod
    def _known_block_size(cls, value: int) -> int:
        if value not in BLOCK_SIZES:
            raise ValueError("8, 16, 32 or 64")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the file that flags or environment name behind both."""
        path = init_settings().get("config", env_settings().get("config"))
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, InitSettingsSource(settings_cls, read_config_file(Path(path)))

    @property
    def database_url(self) -> str:
        """Where the database is, the default filled in."""
        if self.db is not None:
            return self.db
        return f"sqlite+aiosqlite:///{platformdirs.user_data_path('prefixgate') / 'prefixgate.db'}"

    @property
    def default_limits(self) -> Limits:
        """The limits of a tenant that has none of its own."""
        return Limits(**{name: getattr(self, f"limit_{name}") for name in LIMIT_NAMES})

    def shown(self) -> dict[str, Any]:
        """Give every option as a plain value, secrets masked; read back as a file it means the same but for those."""
        values = self.model_dump(mode="json", exclude={"config"})
        if self.db is not None:
            values["db"] = mask_url(self.db)
        return values

    @field_validator("pepper", "admin_key")
    @classmethod
    def _no_mask(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().strip("*"):
            raise ValueError("a secret, not the mask that --print-config prints in its place")
        return value

    @field_validator("pepper")
    @classmethod
    def _long_pepper(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_PEPPER_CHARS:
            raise ValueError(f"at least {MIN_PEPPER_CHARS} characters")
        return value

    @field_validator("db")
    @classmethod
    def _async_url(cls, value: str | None) -> str | None:
        if value is not None and not _DATABASE_URL.fullmatch(value):
            raise ValueError(
                "an async SQLAlchemy URL, such as sqlite+aiosqlite:///FILE or postgresql+psycopg://HOST/NAME"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_pinned_ratio > self.max_shared_ratio:
            raise ValueError(
                f"--max-pinned-ratio: got {self.max_pinned_ratio}, wanted at most --max-shared-ratio "
                f"({self.max_shared_ratio})"
            )
        if self.tokenizer is not None and not self.upstream:
            raise ValueError(
                "--tokenizer: got a folder and no --upstream, wanted both: a model that is served here has its own"
            )
        if len({entry.url for entry in self.upstream}) < len(self.upstream):
            raise ValueError("--upstream: got a URL twice, wanted each once")
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError("--num-blocks and --kv-cache-memory: both size the KV cache, wanted one of them")
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens: got {self.max_num_batched_tokens}, wanted at least --max-num-seqs "
                f"({self.max_num_seqs}), so that every running request gets its token in each step"
            )
        if self.deterministic and not 1 <= self.prefill_chunk <= self.max_num_batched_tokens // 4:
            raise ValueError(
                f"--prefill-chunk: got {self.prefill_chunk}, wanted 1 to {self.max_num_batched_tokens // 4}, a quarter of "
                "--max-num-batched-tokens, for --deterministic"
            )
        return self


class ClientSettings(BaseSettings):
    """Options of the commands that talk to a running gateway."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True, frozen=True, use_attribute_docstrings=True
    )

    url: str = "http://127.0.0.1:8000"
    """Address of the gateway."""
    admin_key: AdminKey | None = None
    """Key of the admin API, the same as the gateway's."""

    @field_validator("url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        try:
            is_url = _GATEWAY_URL.fullmatch(value) is not None and urlsplit(value).port != 0
        except ValueError:  # the port
            is_url = False
        if not is_url:
            raise ValueError("http://HOST:PORT or https://HOST, without user, query or fragment")
        return value.rstrip("/")


def mask_url(url: str) -> str:
    """Print a database's URL without the passwords in it."""
    return _URL_PASSWORDS.sub(lambda match: "***" if match[1] is None else f"{match[1]}:***@", url)


def is_in_environment(name: str) -> bool:
    """Whether an option is set there, and not to nothing."""
    return bool(os.environ.get(ENVIRONMENT_PREFIX + name.upper()))


def unknown_variables() -> list[str]:
    """Name the variables of the environment that look like options and are none."""
    options = Settings.model_fields.keys() | ClientSettings.model_fields.keys()
    known = {ENVIRONMENT_PREFIX + name.upper() for name in options}
    return sorted(
        name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known
    )
