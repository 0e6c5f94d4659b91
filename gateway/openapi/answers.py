"""What the endpoints that SDKs know give back, and errors in both shapes."""

from __future__ import annotations

from gateway.error_shapes import ANTHROPIC_ERROR_TYPES
from gateway.openapi.context import CONTEXT_MANAGEMENT
from gateway.openapi.schema import COUNT, OBJECT, TEXT, Schema, answer, any_of, array, nullable, one_of, ref, whole

_FINISH = one_of("stop", "length", "tool_calls")

_ENTRY = answer(token=TEXT, logprob={"type": "number"}, bytes=array(whole(0, 255)), top_logprobs=array(OBJECT))
_LOGPROBS = nullable(answer(content=nullable(array(_ENTRY)), refusal=nullable(TEXT)))
_USAGE = answer(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=answer(cached_tokens=COUNT),
)
_CALL = answer(id=TEXT, type=one_of("function"), function=answer(name=TEXT, arguments=TEXT))
_MESSAGE = answer(role=one_of("assistant"), content=nullable(TEXT), refusal=nullable(TEXT))
_MESSAGE["properties"]["tool_calls"] = array(_CALL, least=1)
_DELTA: Schema = {
    "type": "object",
    "properties": {
        "role": one_of("assistant"),
        "content": nullable(TEXT),
        "tool_calls": array({"type": "object", "required": ["index"], "properties": {"index": COUNT}}),
    },
}


def _object(kind: str, **fields: Schema) -> Schema:
    return answer(id=TEXT, object=one_of(kind), created=COUNT, model=TEXT, **fields)


_CHUNK = _object(
    "chat.completion.chunk",
    choices=array(answer(index=COUNT, delta=_DELTA, logprobs=_LOGPROBS, finish_reason=nullable(_FINISH))),
)
_CHUNK["properties"]["usage"] = nullable(ref("Usage"))

_COMPLETION = _object(
    "text_completion",
    choices=array(answer(index=COUNT, text=TEXT, logprobs=nullable(OBJECT), finish_reason=nullable(_FINISH))),
)
_COMPLETION["properties"]["usage"] = nullable(ref("Usage"))

_BLOCK: Schema = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": one_of("text", "thinking", "tool_use"), "text": TEXT, "name": TEXT, "input": OBJECT},
}
_MODEL = answer(id=TEXT, object=one_of("model"), created=COUNT, owned_by=TEXT)
_ERROR_TYPES = ("invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error")


def error_schema(codes: set[str | None]) -> Schema:
    """An error in OpenAI's shape with one of these codes."""
    named = sorted(code for code in codes if code is not None)
    code: Schema = {"enum": [*named, None] if None in codes else named}
    return {"allOf": [ref("Error"), {"properties": {"error": {"properties": {"code": code}}}}]}


ANSWERS: dict[str, Schema] = {
    "ContextManagement": CONTEXT_MANAGEMENT,
    "Usage": _USAGE,
    "ChatCompletion": _object(
        "chat.completion",
        choices=array(answer(index=COUNT, message=_MESSAGE, logprobs=_LOGPROBS, finish_reason=_FINISH), least=1),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": _CHUNK,
    "Completion": _COMPLETION,
    "Message": answer(
        id=TEXT,
        type=one_of("message"),
        role=one_of("assistant"),
        model=TEXT,
        content=array(_BLOCK),
        stop_reason=nullable(one_of("end_turn", "max_tokens", "stop_sequence", "tool_use")),
        stop_sequence=nullable(TEXT),
        usage=answer(
            input_tokens=COUNT,
            cache_creation_input_tokens=COUNT,
            cache_read_input_tokens=COUNT,
            cache_creation=answer(ephemeral_5m_input_tokens=COUNT, ephemeral_1h_input_tokens=COUNT),
            output_tokens=COUNT,
            service_tier=one_of("standard"),
        ),
    ),
    "MessageEvent": answer(
        type=one_of(
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
            "error",
        )
    ),
    "Response": answer(
        id=TEXT,
        object=one_of("response"),
        created_at=COUNT,
        status=one_of("in_progress", "completed", "incomplete", "failed"),
        error=nullable(OBJECT),
        incomplete_details=nullable(OBJECT),
        model=TEXT,
        output=array(answer(type=one_of("message", "reasoning", "function_call"), id=TEXT, status=TEXT)),
    ),
    "ResponseEvent": answer(type=TEXT, sequence_number=COUNT),
    "Embeddings": answer(object=one_of("list"), data=array(OBJECT), model=TEXT),
    "TokenCount": {
        **answer(input_tokens=COUNT),
        "properties": {"input_tokens": COUNT, "context_management": answer(original_input_tokens=COUNT)},
    },
    "Tokens": answer(
        count=COUNT,
        max_model_len=COUNT,
        tokens=array(COUNT),
        token_strs=nullable(array(any_of(TEXT, {"type": "null"}))),
    ),
    "Text": answer(prompt=TEXT),
    "Model": _MODEL,
    "ModelList": answer(object=one_of("list"), data=array(ref("Model"))),
    "Status": answer(status=TEXT),
    "Version": answer(version=TEXT),
    "Error": answer(
        error=answer(message=TEXT, type=one_of(*_ERROR_TYPES), param=nullable(TEXT), code=nullable(TEXT)),
    ),
    "AnthropicError": answer(type=one_of("error"), error=answer(type=one_of(*ANTHROPIC_ERROR_TYPES), message=TEXT)),
}

for _name in ("ChatCompletion", "ChatCompletionChunk", "Message", "MessageEvent", "Response"):
    ANSWERS[_name]["properties"]["context_management"] = ref("ContextManagement")
