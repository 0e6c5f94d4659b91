"""`/dashboard`: the page and its files, for everybody; logging in and out."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin_wire import Body, author_of, iso_time, read_body
from gateway.auth import Authenticator
from gateway.dashboard.access import AdminAccess
from gateway.dashboard.files import PageFiles
from gateway.dashboard.guesses import Guesses
from gateway.dashboard.origin import check_not_foreign, is_encrypted, is_private
from gateway.dashboard.session import COOKIE, SESSION_SECONDS, Session, Sessions
from gateway.errors import AuthenticationError, StorageUnavailableError
from gateway.routes.probes import json_response
from gateway.storage.audit import write_audit
from gateway.storage.store import Store

logger = logging.getLogger(__name__)


class LoginBody(Body):
    """`POST /dashboard/login`."""

    key: str


class Dashboard:
    """Its routes, and who may use the admin API because of them.

    Attributes:
        access: bearer or cookie, for every admin route.
    """

    def __init__(
        self, authenticator: Authenticator, sessions: Sessions, store: Store | None, *, guesses: Guesses | None = None
    ) -> None:
        self.access = AdminAccess(authenticator, sessions)
        self._authenticator = authenticator
        self._sessions = sessions
        self._store = store
        self._guesses = guesses or Guesses()
        self._files = PageFiles()

    def routes(self) -> list[BaseRoute]:
        """List them. Paths of files are no labels of the metrics, for there are many."""
        return [
            Route("/dashboard", self.redirect),
            Route("/dashboard/", self._files.answer),
            Route("/dashboard/login", self.login, methods=["POST"]),
            Route("/dashboard/logout", self.logout, methods=["POST"]),
            Route("/dashboard/session", self.session),
            Route("/dashboard/{path:path}", self._files.answer),
        ]

    async def redirect(self, _: Request) -> Response:
        """Lead to where the page's relative addresses work; relative, for a Host header is the client's to choose."""
        return Response(status_code=307, headers={"location": "dashboard/"})

    async def login(self, request: Request) -> Response:
        """Give a session for the admin key."""
        check_not_foreign(request)
        self._authenticator.check_admin_enabled()
        self._guesses.check()
        body = await read_body(request, LoginBody)
        if not self._authenticator.is_admin_key(body.key):
            self._guesses.note_wrong()
            logger.warning("dashboard login with a wrong key from %s", _client(request))
            raise AuthenticationError("key: this is not the admin key; wanted the one in PREFIXGATE_ADMIN_KEY")
        session = self._sessions.open()
        logger.info("dashboard login from %s", _client(request))
        await self._note(request, "dashboard.login", session)
        response = Response(status_code=204)
        response.set_cookie(
            COOKIE,
            self._sessions.token(session),
            max_age=SESSION_SECONDS,
            secure=is_encrypted(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def logout(self, request: Request) -> Response:
        """End the session, if there is one."""
        check_not_foreign(request)
        session = self._sessions.read(request.cookies.get(COOKIE, ""))
        if session is not None:
            self._sessions.revoke(session)
            logger.info("dashboard logout from %s", _client(request))
            await self._note(request, "dashboard.logout", session)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, secure=is_encrypted(request), httponly=True, samesite="strict")
        return response

    async def session(self, request: Request) -> Response:
        """Say until when the browser is logged in, whether others could read along, and whether anybody can log in.

        Who is not logged in has null: a page that asks has done nothing wrong, and browsers show errors to people.
        """
        session = self._sessions.read(request.cookies.get(COOKIE, ""))
        expires_at = None if session is None else iso_time(session.expires_at)
        is_enabled = self._authenticator.is_admin_enabled
        return json_response({"expires_at": expires_at, "secure": is_private(request), "enabled": is_enabled})

    async def _note(self, request: Request, action: str, session: Session) -> None:
        """Write to the audit log, where there is one; without it the dashboard can still show what is wrong."""
        if self._store is None:
            return
        request.scope["state"]["operator"] = "dashboard"
        try:
            async with self._store.database.write() as connection:
                await write_audit(connection, author_of(request), action, session.nonce)
        except StorageUnavailableError as error:
            logger.warning("%s is not in the audit log: %s", action, error.cause)


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"
