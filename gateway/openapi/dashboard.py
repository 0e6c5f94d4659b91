"""The operations of the dashboard's own: its page, and logging in and out."""

from __future__ import annotations

from gateway.dashboard.routes import LoginBody
from gateway.errors import AdminDisabledError, AuthenticationError, CrossSiteError, NotFoundError, RateLimitError
from gateway.openapi.operation import Access, Given, Operation
from gateway.openapi.schema import TEXT, ref

DASHBOARD: tuple[Operation, ...] = (
    Operation("GET", "/dashboard", "Lead to the page", Access.EVERYBODY, {307: Given(None)}),
    Operation("GET", "/dashboard/", "The page", Access.EVERYBODY, {200: Given(TEXT, "text/html")}),
    Operation(
        "GET", "/dashboard/{path}", "A file of the page", Access.EVERYBODY, {200: Given(TEXT, "*/*")}, (NotFoundError,)
    ),
    Operation(
        "POST",
        "/dashboard/login",
        "Get a session's cookie for the admin key",
        Access.EVERYBODY,
        {204: Given(None)},
        (AuthenticationError, AdminDisabledError, CrossSiteError, RateLimitError),
        LoginBody,
    ),
    Operation("POST", "/dashboard/logout", "End the session", Access.EVERYBODY, {204: Given(None)}, (CrossSiteError,)),
    Operation(
        "GET",
        "/dashboard/session",
        "Say until when the browser is logged in",
        Access.EVERYBODY,
        {200: Given(ref("DashboardSession"))},
    ),
)
