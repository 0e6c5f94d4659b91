"""Where a request comes from, as a browser tells it: from our own page, or from another one.

A cookie goes out with whatever request a browser makes, so what asks matters as much as what is shown. SameSite=Strict
keeps other sites away; another port of the same host is the same site, and is kept away here.

Source: Fetch Metadata Request Headers (W3C), for `Sec-Fetch-Site`; RFC 6454 for `Origin`.
"""

from __future__ import annotations

from starlette.requests import Request

from gateway.auth import is_loopback
from gateway.errors import CrossSiteError

MARK = "x-prefixgate-dashboard"
"""A header that no form can send, and no foreign script without being allowed to first."""

_SAFE_METHODS = frozenset({"GET", "HEAD"})


def check_own_page(request: Request) -> None:
    """Let a request with a session pass.

    Raises: CrossSiteError: another page made it, or it changes something and is not known to be from ours.
    """
    if request.method in _SAFE_METHODS:
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise CrossSiteError("another site's page asked with the dashboard's cookie; ask from the dashboard itself")
    elif request.headers.get(MARK) != "1" or not _is_same_origin(request):
        raise CrossSiteError(
            f"a change with the dashboard's cookie needs the header '{MARK}: 1' and must come from the dashboard's own "
            "page; behind a proxy that ends TLS, have it pass on Host and X-Forwarded-Proto"
        )


def check_not_foreign(request: Request) -> None:
    """Let a request without a session pass, unless a browser says that another page made it.

    Raises: CrossSiteError: it did.
    """
    is_told = "sec-fetch-site" in request.headers or "origin" in request.headers
    if is_told and not _is_same_origin(request):
        raise CrossSiteError(
            "this must come from the dashboard's own page, and comes from another site; behind a proxy that ends TLS, "
            "have it pass on Host and X-Forwarded-Proto"
        )


def is_encrypted(request: Request) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy that told so."""
    return bool(request.scope["scheme"] == "https")


def is_private(request: Request) -> bool:
    """Whether nobody can read along: TLS, or the same machine."""
    return is_encrypted(request) or is_loopback(_host_name(request.headers.get("host", "")))


def _is_same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host, origin = request.headers.get("host"), request.headers.get("origin")
    return host is not None and origin == f"{request.scope['scheme']}://{host}"


def _host_name(host: str) -> str:
    """Cut the port off, and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
