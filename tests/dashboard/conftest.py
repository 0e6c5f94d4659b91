"""One gateway with traffic and one browser for all tests of the dashboard.

Playwright's asynchronous API, for its synchronous one leaves a running loop behind that no later test of a run could live
with. Everything here shares the loop of the session: Playwright's objects belong to the loop that they were made in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.dashboard.support.browser import Faults, OpenPage, opened_page, running_browser
from tests.dashboard.support.served import ServedGateway, serving
from tests.dashboard.support.traffic import Traffic

_HERE = Path(__file__).parent
_session = pytest_asyncio.fixture(scope="session", loop_scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in the loop of the session."""
    for item in items:
        if _HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """A gateway that serves, without traffic."""
    with serving(tmp_path_factory.mktemp("dashboard")) as served:
        yield served


@_session
async def traffic(gateway: ServedGateway) -> AsyncIterator[Traffic]:
    """Its clients, after a first round of everything."""
    traffic = Traffic(gateway)
    await traffic.everything()
    yield traffic
    await traffic.close()


@_session
async def browser() -> AsyncIterator[Browser]:
    async with running_browser() as browser:
        yield browser


@pytest.fixture
def faults() -> Iterator[Faults]:
    """Fails the test for what went wrong in any of its pages."""
    faults = Faults()
    yield faults
    assert not (found := faults.found()), "\n".join(found)


@pytest.fixture
def open_page(browser: Browser, gateway: ServedGateway, faults: Faults) -> OpenPage:
    """`async with open_page(width=NARROW, dark=True) as page`."""
    return partial(opened_page, browser, gateway.url, faults)


@pytest_asyncio.fixture(loop_scope="session")
async def page(open_page: OpenPage) -> AsyncIterator[Page]:
    """A new page, as wide as a desktop's and light."""
    async with open_page() as page:
        yield page
