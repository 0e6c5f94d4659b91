"""Which headers cross the gateway, in either direction. Keys and cookies of clients never do."""

from __future__ import annotations

from collections.abc import Iterable

RawHeaders = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Source: RFC 9110, section 7.6.1."""

_NOT_FORWARDED = _HOP_BY_HOP | {
    b"host",
    b"content-length",  # of the body that is sent, which may be another one
    b"content-type",
    b"accept-encoding",  # a packed answer could not be read for its usage
    b"expect",
    b"authorization",  # the key is good for this gateway
    b"x-api-key",
    b"cookie",
    b"x-request-id",
}
_NOT_RETURNED = _HOP_BY_HOP | {
    b"content-length",
    b"date",
    b"server",
    b"alt-svc",  # it would lead clients past this gateway
    b"set-cookie",
    b"x-request-id",  # the gateway's own is the same
}
_NOT_RETURNED_PREFIXES = (b"x-prefixgate-", b"access-control-")
"""What this gateway says of its cache, and who may read its answers, is not an upstream's to say."""


def forwarded(headers: Iterable[tuple[bytes, bytes]], request_id: str, own: RawHeaders) -> RawHeaders:
    """Give the headers of the request to an upstream.

    Args:
        headers: the client's, names in lower case.
        request_id: the gateway's name for the request.
        own: of this upstream; they win over the client's.
    """
    headers = list(headers)
    left_out = _NOT_FORWARDED | _named_by_connection(headers) | {name for name, _ in own}
    kept = [(name, value) for name, value in headers if name not in left_out]
    fixed = [
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", request_id.encode()),
    ]
    return kept + fixed + own


def returned(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Give those headers of an upstream's answer that the client gets."""
    headers = [(name.lower(), value) for name, value in headers]
    left_out = _NOT_RETURNED | _named_by_connection(headers)
    return [
        (name, value) for name, value in headers if name not in left_out and not name.startswith(_NOT_RETURNED_PREFIXES)
    ]


def _named_by_connection(headers: RawHeaders) -> set[bytes]:
    """Headers that the `connection` header declares to be for this hop only."""
    return {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
