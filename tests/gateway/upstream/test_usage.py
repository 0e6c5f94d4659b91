from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.usage import MAX_LINE_BYTES, AnswerReader
from tests.gateway.upstream.mock import ANSWER, STREAM


def read(*pieces: bytes, keeps_message: bool = True) -> AnswerReader:
    reader = AnswerReader(keeps_message=keeps_message)
    for piece in pieces:
        reader.feed(piece)
    return reader


def told(reader: AnswerReader) -> tuple[object, ...]:
    tokens = (reader.num_prompt_tokens, reader.num_cached_tokens, reader.num_output_tokens)
    return (reader.completion_id, reader.finish_reason, *tokens)


EXPECTED = ("chatcmpl-1", "stop", 9, 4, 2)


@given(st.lists(st.integers(0, len(STREAM))), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_a_stream_tells_the_same_in_whatever_pieces(cuts: list[int], end: bytes, keeps: bool) -> None:
    stream = STREAM.replace(b"\n", end)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:stop] for start, stop in pairwise(places)]
    reader = read(*pieces, keeps_message=keeps)
    assert told(reader) == EXPECTED
    assert reader.turn.text == ("hé" if keeps else "")
    assert reader.ends_on_a_border
    assert reader.is_done
    assert not read(stream[:-1]).is_done


def test_the_largest_cached_count_of_all_usages_counts() -> None:
    usages = [b'data: {"usage":{"prompt_tokens_details":{"cached_tokens":%d}}}\n\n' % count for count in (3, 8, 5)]
    assert read(*usages).num_cached_tokens == 8


def test_more_cached_tokens_than_the_prompt_has_are_not_believed() -> None:
    usage = b'data: {"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":900}}}\n\n'
    assert read(usage).num_cached_tokens == 9


def test_an_answer_in_one_piece_is_read_whole() -> None:
    reader = AnswerReader(keeps_message=True)
    reader.read_body(ANSWER)
    assert told(reader) == EXPECTED
    assert reader.turn.text == "hé"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1]",
        b'{"usage": 3}',
        b'{"usage": {"prompt_tokens": "9", "prompt_tokens_details": []}}',
        b'{"usage": {"prompt_tokens": -1, "completion_tokens": true}, "choices": [7]}',
        b'{"choices": {}}',
    ],
)
def test_what_is_no_usage_tells_nothing(body: bytes) -> None:
    reader = AnswerReader(keeps_message=True)
    reader.read_body(body)
    reader.feed(b"data: " + body + b"\n\n")
    assert told(reader)[2:] == (None, None, None)


def test_a_line_that_is_too_long_is_passed_over_and_the_next_one_read() -> None:
    long = b'data: {"usage":{"prompt_tokens":1},"x":"' + b"x" * MAX_LINE_BYTES
    reader = read(long[:500_000], long[500_000:], b'"}\n', STREAM)
    assert told(reader) == EXPECTED
    assert not read(long).ends_on_a_border


def test_text_that_speaks_of_usage_is_no_usage() -> None:
    said = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"\\"usage\\":{\\"prompt_tokens\\":5}"}}]}\n\n'
    assert read(said, said, keeps_message=False).num_prompt_tokens is None


def test_only_the_first_choice_is_kept() -> None:
    stream = b'data: {"choices":[{"index":1,"delta":{"content":"b"}}]}\ndata: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n'
    assert read(stream).turn.text == "a"
