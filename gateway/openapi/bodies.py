"""What clients send to the endpoints that SDKs know. The parsers decide; this tells what they take."""

from __future__ import annotations

from gateway import sampling_fields as bounds
from gateway.chat_messages import MAX_MESSAGES, MAX_NAME_CHARS, MAX_PARTS, MAX_TOOL_CALLS, MAX_TOOLS, ROLES
from gateway.chat_request import MAX_STOP_CHARS, MAX_STOPS
from gateway.messages_content import ROLES as ANTHROPIC_ROLES
from gateway.openapi.asked_context import ASKED_COMPACTION, ASKED_EDITS
from gateway.openapi.schema import FLAG, OBJECT, TEXT, Schema, any_of, array, body, nullable, number, one_of, ref, whole
from gateway.tools.definitions import NAME_PATTERN

_INT64 = 2**63 - 1
_INT32 = 2**31 - 1

_TOKENS = array(whole(0, _INT32))
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS}
_TOOL_NAME: Schema = {"type": "string", "pattern": NAME_PATTERN}
_PENALTY = number(-bounds.MAX_PENALTY, bounds.MAX_PENALTY)
_DIAGNOSTICS = {
    "diagnostics": body((), previous_message_id=TEXT),
    "prompt_cache_options": body((), comparison_response_id=TEXT),
}

_FORMAT = body(("type",), type=one_of("text", "json_object", "json_schema"), json_schema=OBJECT)

_SAMPLING: dict[str, Schema] = {
    "max_tokens": whole(0, _INT32),  # 0 where a prompt is only scored
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": whole(-1, _INT32),
    "min_p": number(0, 1),
    "seed": whole(-_INT64 - 1, _INT64),
    "stop": any_of(_STOP, array(_STOP, most=MAX_STOPS)),
    "stream": FLAG,
    "stream_options": body((), include_usage=FLAG),
    "ignore_eos": FLAG,
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": number(bounds.MIN_REPETITION_PENALTY, bounds.MAX_REPETITION_PENALTY),
    "logit_bias": {
        "type": "object",
        "additionalProperties": number(-bounds.MAX_BIAS, bounds.MAX_BIAS),
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "maxProperties": bounds.MAX_BIASES,
    },
    "cache_salt": TEXT,
    **_DIAGNOSTICS,
}
_ANSWERS: dict[str, Schema] = {
    "n": whole(1, bounds.MAX_ANSWERS),
    "prompt_logprobs": whole(0, bounds.MAX_TOP_LOGPROBS),
    "response_format": _FORMAT,
    "structured_outputs": OBJECT,
}

_TEXT_PART = body(("type", "text"), type=one_of("text"), text=TEXT)
_DOCUMENT_PART = body(("type", "file"), type=one_of("file"), file=body(("file_id",), file_id=TEXT))
_CALL = body(
    ("id", "type", "function"),
    id=TEXT,
    type=one_of("function"),
    function=body(("name", "arguments"), name=_NAME, arguments=TEXT),
)
_MESSAGE = body(
    ("role",),
    role=one_of(*ROLES),
    content=any_of(TEXT, array(any_of(ref("TextPart"), ref("DocumentPart")), least=1, most=MAX_PARTS)),
    name=_NAME,
    tool_calls=array(_CALL, most=MAX_TOOL_CALLS),
    tool_call_id=TEXT,
)
_TOOL = body(
    ("type", "function"),
    type=one_of("function"),
    function=body(("name",), name=_TOOL_NAME, description=TEXT, parameters=OBJECT),
)
_CHAT_PROMPT = body(("id",), id=TEXT, version=any_of(TEXT, whole(1, _INT32)), variables=OBJECT)

_CHAT = body(
    ("model", "messages"),
    model=ref("ModelName"),
    messages=array(ref("ChatMessage"), least=1, most=MAX_MESSAGES),
    tools=array(ref("Tool"), most=MAX_TOOLS),
    tool_choice=any_of(one_of("auto", "none", "required"), ref("NamedTool")),
    parallel_tool_calls=FLAG,
    max_completion_tokens=whole(0, _INT32),
    logprobs=FLAG,
    top_logprobs=whole(0, bounds.MAX_TOP_LOGPROBS),
    prompt=_CHAT_PROMPT,
    continue_final_message=FLAG,
    chat_template_kwargs=OBJECT,
    reasoning_effort=TEXT,
    user=TEXT,
    **_SAMPLING,
    **_ANSWERS,
)
_PROMPT: Schema = {"type": "string", "minLength": 1}
_PROMPT_TOKENS = array(whole(0, _INT32), least=1)
_COMPLETION = body(
    ("model", "prompt"),
    model=ref("ModelName"),
    prompt=any_of(_PROMPT, _PROMPT_TOKENS, array(any_of(_PROMPT, _PROMPT_TOKENS), least=1, most=bounds.MAX_ANSWERS)),
    echo=FLAG,
    add_special_tokens=FLAG,
    logprobs=any_of(whole(0, bounds.MAX_TOP_LOGPROBS), {"enum": [False]}),
    best_of=whole(1, bounds.MAX_ANSWERS),
    user=TEXT,
    **_SAMPLING,
    **_ANSWERS,
)

_ANTHROPIC_TEXT = body(("type", "text"), type=one_of("text"), text=TEXT, cache_control=body((), ttl=one_of("5m", "1h")))
_ANTHROPIC_BLOCK: Schema = {"type": "object", "required": ["type"], "properties": {"type": TEXT}}
_COUNTED: dict[str, Schema] = {
    "model": ref("ModelName"),
    "system": any_of(TEXT, array(_ANTHROPIC_TEXT)),
    "messages": array(
        body(
            ("role", "content"),
            role=one_of(*ANTHROPIC_ROLES),
            content=any_of(TEXT, array(any_of(_ANTHROPIC_TEXT, _ANTHROPIC_BLOCK), least=1, most=MAX_PARTS)),
        ),
        least=1,
        most=MAX_MESSAGES,
    ),
    "tools": array(
        body(("name", "input_schema"), name=_TOOL_NAME, description=TEXT, input_schema=OBJECT), most=MAX_TOOLS
    ),
    "tool_choice": body(
        ("type",), type=one_of("auto", "any", "tool", "none"), name=TEXT, disable_parallel_tool_use=FLAG
    ),
    "thinking": body(("type",), type=one_of("enabled", "disabled", "adaptive"), budget_tokens=whole(1)),
    "metadata": body((), user_id=TEXT),
    "output_config": body((), effort=TEXT, format={}),
    "chat_template_kwargs": OBJECT,
    "context_management": ASKED_EDITS,
}
_MESSAGES = body(
    ("model", "max_tokens", "messages"),
    max_tokens=whole(1, _INT32),
    temperature=number(0, 1),
    top_p=number(0, 1),
    top_k=whole(0, _INT32),
    stop_sequences=array(_STOP, most=MAX_STOPS),
    stream=FLAG,
    cache_control=body((), ttl=one_of("5m", "1h")),
    seed=whole(-_INT64 - 1, _INT64),
    ignore_eos=FLAG,
    diagnostics=_DIAGNOSTICS["diagnostics"],
    **_COUNTED,
)

_ITEM: Schema = {"type": "object", "properties": {"type": nullable(TEXT), "role": nullable(TEXT)}}
_RESPONSES = body(
    ("model", "input"),
    model=ref("ModelName"),
    input=any_of(TEXT, array(_ITEM, least=1, most=MAX_MESSAGES)),
    instructions=TEXT,
    tools=array(body(("type", "name"), type=one_of("function"), name=_TOOL_NAME, parameters=OBJECT), most=MAX_TOOLS),
    tool_choice=any_of(TEXT, OBJECT),
    parallel_tool_calls=FLAG,
    max_output_tokens=whole(1, _INT32),
    top_logprobs=whole(0, bounds.MAX_TOP_LOGPROBS),
    include=array(TEXT),
    text=body((), format=OBJECT),
    reasoning=body((), effort=TEXT),
    metadata={"type": "object", "additionalProperties": TEXT},
    store={"type": "boolean", "enum": [False]},
    truncation=one_of("auto", "disabled"),
    context_management=ASKED_COMPACTION,
    prompt=_CHAT_PROMPT,
    **{name: schema for name, schema in _SAMPLING.items() if name not in ("max_tokens", "stream_options")},
    stream_options=OBJECT,
)

_TOKENIZE = body(
    (),
    model=ref("ModelName"),
    prompt=TEXT,
    messages=array(ref("ChatMessage"), least=1, most=MAX_MESSAGES),
    tools=array(ref("Tool"), most=MAX_TOOLS),
    add_special_tokens=FLAG,
    add_generation_prompt=FLAG,
    return_token_strs=FLAG,
)

BODIES: dict[str, Schema] = {
    "TextPart": _TEXT_PART,
    "DocumentPart": _DOCUMENT_PART,
    "ChatMessage": _MESSAGE,
    "Tool": _TOOL,
    "NamedTool": body(("type", "function"), type=one_of("function"), function=body(("name",), name=_NAME)),
    "ChatRequest": _CHAT,
    "CompletionRequest": _COMPLETION,
    "MessagesRequest": _MESSAGES,
    "CountTokensRequest": body(("model", "messages"), **_COUNTED),
    "ResponsesRequest": _RESPONSES,
    "EmbeddingsRequest": body(("model", "input"), model=TEXT, input=any_of(TEXT, array({}))),
    "TokenizeRequest": _TOKENIZE,
    "DetokenizeRequest": body(("tokens",), model=ref("ModelName"), tokens=_TOKENS),
}


def model_name(served: str | None) -> Schema:
    """The one model that is served; None: whichever."""
    return TEXT if served is None else {"type": "string", "enum": [served]}
