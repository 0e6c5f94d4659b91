"""The door: the form, in all looks, and the admin key through it."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.support.browser import NARROW, WIDE, Faults, OpenPage, axe, login

WRONG_KEY = "not-the-admin-key"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_form_can_be_read_by_everybody(open_page: OpenPage, width: int, dark: bool) -> None:
    async with open_page(width=width, dark=dark) as page:
        await page.goto("/dashboard")
        await expect(page.get_by_label("Admin key")).to_be_focused()
        await axe(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_wrong_key_is_refused_in_words(page: Page, faults: Faults) -> None:
    faults.allow("401")
    await login(page, WRONG_KEY)
    await expect(page.get_by_role("alert")).not_to_be_empty()
    await expect(page.get_by_label("Admin key")).to_be_visible()
    assert await page.context.cookies() == []
    await axe(page)
