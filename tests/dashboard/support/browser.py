"""Debian's Chromium, and what a page must never do in it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from tests.dashboard.support.served import ADMIN_KEY
from tests.support.services import require_program

WIDE = 1280
NARROW = 390
"""Width of a desktop's window and of a phone's, in CSS pixels."""
_HEIGHTS = {WIDE: 900, NARROW: 844}
_LOCAL = ("data", "blob", "about")
OpenPage = Callable[..., contextlib.AbstractAsyncContextManager[Page]]
"""`opened_page` for a gateway: takes width and dark."""


@contextlib.asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Start Chromium; skips or fails where it is missing."""
    program = require_program("chromium", "chromium")
    # As root, in a container, there is neither its sandbox nor a large /dev/shm.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


class Faults:
    """Everything that went wrong in the pages of a test, in words."""

    def __init__(self) -> None:
        self._allowed: list[re.Pattern[str]] = []
        self._found: list[str] = []

    def allow(self, *patterns: str) -> None:
        """Take what a pattern is found in for wanted: Chromium itself prints an error for each answer of 400 and above."""
        self._allowed += map(re.compile, patterns)

    def found(self) -> list[str]:
        """What nobody allowed."""
        return [fault for fault in self._found if not any(pattern.search(fault) for pattern in self._allowed)]

    def watch(self, page: Page, url: str) -> None:
        """Look at all that a page does; `url` is the only host that it may ask."""
        host = urlsplit(url).netloc

        def console(message: ConsoleMessage) -> None:
            if message.type == "error":
                self._found.append(f"console: {message.text} ({message.location.get('url', '')})")

        def failed(request: Request) -> None:
            # A page that is left or closed ends its own requests, the live events among them.
            if request.failure != "net::ERR_ABORTED":
                self._found.append(f"failed: {request.method} {request.url}: {request.failure}")

        def asked(request: Request) -> None:
            address = urlsplit(request.url)
            if address.scheme not in _LOCAL and address.netloc != host:
                self._found.append(f"another host: {request.method} {request.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: self._found.append(f"uncaught: {error}"))
        page.on("requestfailed", failed)
        page.on("request", asked)


@contextlib.asynccontextmanager
async def opened_page(
    browser: Browser, url: str, faults: Faults, *, width: int = WIDE, dark: bool = False
) -> AsyncIterator[Page]:
    """Open an empty page without cookies; relative addresses are the gateway's.

    Args:
        browser: to open it in.
        url: of the gateway.
        faults: told what goes wrong in it.
        width: of the window, `WIDE` or `NARROW`.
        dark: what the user prefers.
    """
    context = await browser.new_context(
        base_url=url,
        viewport={"width": width, "height": _HEIGHTS[width]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    try:
        page = await context.new_page()
        faults.watch(page, url)
        yield page
    finally:
        await context.close()


async def login(page: Page, key: str = ADMIN_KEY, *, route: str = "/overview") -> None:
    """Type the admin key as a user does; the page that was asked for follows."""
    await page.goto(f"/dashboard#{route}")
    await page.get_by_label("Admin key").fill(key)
    await page.get_by_role("button", name="Log in").click()


async def axe(page: Page, within: str | None = None) -> None:
    """Fail on each serious or critical violation that axe-core finds in the page, or a part of it, as it stands."""
    results = await Axe().run(page, context=within)
    violations = [found for found in results.response["violations"] if found["impact"] in ("serious", "critical")]
    assert not violations, "\n" + "\n".join(_lines(violations))


def _lines(violations: Sequence[dict[str, object]]) -> list[str]:
    lines = []
    for found in violations:
        lines.append(f"{found['impact']}: {found['help']} ({found['id']}, {found['helpUrl']})")
        for node in found["nodes"]:  # type: ignore[attr-defined] -- JSON
            reasons = "; ".join(check["message"] for kind in ("any", "all", "none") for check in node[kind])
            lines.append(f"  {' '.join(map(str, node['target']))}: {node['html'][:200]}\n    {reasons}")
    return lines
