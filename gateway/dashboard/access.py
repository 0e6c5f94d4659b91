"""Who may use the admin API: whoever shows the admin key, or a session of the dashboard."""

from __future__ import annotations

from starlette.requests import Request

from gateway.auth import Authenticator
from gateway.dashboard.origin import check_own_page
from gateway.dashboard.session import COOKIE, Sessions
from gateway.errors import AuthenticationError


class AdminAccess:
    """Bearer or cookie; the bearer decides where both come, for a program said what it means."""

    def __init__(self, authenticator: Authenticator, sessions: Sessions) -> None:
        self._authenticator = authenticator
        self._sessions = sessions

    async def check(self, request: Request) -> None:
        """Let the operator pass; a dependency of every admin route, which is no coroutine for nothing: others get a thread."""
        self.let_in(request)

    def let_in(self, request: Request) -> None:
        """Let the operator pass.

        Raises:
            AdminDisabledError: no admin key is set.
            AuthenticationError: neither came, or what came is wrong or over.
            CrossSiteError: a cookie came, and not from the dashboard's own page.
        """
        if "authorization" in request.headers or COOKIE not in request.cookies:
            self._authenticator.check_admin(request.headers.get("authorization"))
            return
        self._authenticator.check_admin_enabled()
        if self._sessions.read(request.cookies[COOKIE]) is None:
            raise AuthenticationError("not logged in, or no longer; log in at /dashboard with the admin key")
        check_own_page(request)
        request.scope["state"]["operator"] = "dashboard"  # as whom the audit log names them
