from __future__ import annotations

from gateway.upstream.headers import forwarded, returned


def test_keys_cookies_and_what_is_for_one_hop_stay_here() -> None:
    came = [
        (b"host", b"gateway"),
        (b"authorization", b"Bearer secret"),
        (b"x-api-key", b"secret"),
        (b"cookie", b"secret"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"secret"),
        (b"transfer-encoding", b"chunked"),
        (b"accept-encoding", b"gzip"),
        (b"x-request-id", b"mine"),
        (b"x-session", b"7"),
        (b"x-org", b"client's"),
    ]
    sent = forwarded(came, "req-1", [(b"x-org", b"ours")])
    assert sent == [
        (b"x-session", b"7"),
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"req-1"),
        (b"x-org", b"ours"),
    ]


def test_an_answer_keeps_its_own_headers_and_loses_what_is_the_gateways() -> None:
    came = [
        (b"Content-Type", b"text/event-stream"),
        (b"Retry-After", b"7"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Server", b"llama.cpp"),
        (b"Date", b"today"),
        (b"Set-Cookie", b"session=1"),
        (b"X-Request-Id", b"theirs"),
        (b"X-Prefixgate-Cache", b"theirs"),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"Content-Length", b"5"),
    ]
    assert returned(came) == [(b"content-type", b"text/event-stream"), (b"retry-after", b"7")]
