"""The page's files: what is served, how, and that nothing else is."""

from __future__ import annotations

import gzip
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

import gateway.dashboard
from gateway.dashboard.files import PLOTLY_PATH, PageFiles
from gateway.errors import NotFoundError
from tests.gateway.dashboard.support import code, cookie, log_in, token

STATIC = Path(gateway.dashboard.__file__).parent / "static"
FILES = sorted(str(file.relative_to(STATIC)) for file in STATIC.rglob("*") if file.is_file())
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY = f"/dashboard/{PLOTLY_PATH}"


async def test_every_file_of_the_folder_is_served_as_what_it_is(browser: httpx.AsyncClient) -> None:
    for name in FILES:
        answer = await browser.get(f"/dashboard/{name}")
        assert answer.status_code == 200, name
        assert answer.content == (STATIC / name).read_bytes()
        assert answer.headers["content-type"].partition(";")[0] == KINDS[Path(name).suffix]


async def test_page_is_where_its_relative_addresses_work(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/dashboard/")).content == (STATIC / "index.html").read_bytes()
    answer = await browser.get("/dashboard", headers={"host": "evil.example"})
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard/")


OUTSIDE = [
    "../session.py",
    "../static/index.html",
    "js/../index.html",
    "./index.html",
    str(STATIC / "index.html"),
    f"/{STATIC / 'index.html'}",
    "js",
    "js/",
    "index.html/",
    "index.html\0",
    "INDEX.HTML",
    "..\\session.py",
    "vendor/package.json",
]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_nothing_else_is_reachable(path: str) -> None:
    """Asked as a server would hand it over, for clients shorten such paths before they send them."""
    scope = {"type": "http", "method": "GET", "headers": [], "path_params": {"path": path}}
    with pytest.raises(NotFoundError):
        await PageFiles().answer(Request(scope))


async def test_path_that_is_quoted_leads_nowhere_either(browser: httpx.AsyncClient) -> None:
    for path in ("%2e%2e/session.py", "..%2fsession.py", "js%2f..%2f..%2fsession.py", "%2fetc%2fpasswd"):
        assert code(await browser.get(f"/dashboard/{path}")) == (404, "not_found")


async def test_every_answer_says_what_the_browser_must_not_do(browser: httpx.AsyncClient) -> None:
    await log_in(browser)
    page = await browser.get("/dashboard/")
    answers = [
        page,
        await browser.get("/dashboard"),
        await browser.get("/dashboard/", headers={"if-none-match": page.headers["etag"]}),
        await browser.get("/dashboard/js/nothing.js"),
        await browser.get("/dashboard/session"),
        await log_in(browser, "wrong"),
        await browser.post("/dashboard/logout"),
        await browser.delete("/dashboard/"),
    ]
    assert [answer.status_code for answer in answers] == [200, 307, 304, 404, 200, 401, 204, 405]
    for answer in answers:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
        assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'", "'none'", "'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
    kept = [answer.headers["cache-control"] for answer in answers]
    assert kept == ["no-cache", "no-store", "no-cache", *["no-store"] * 5]
    assert "content-security-policy" not in (await browser.get("/health")).headers


@pytest.mark.parametrize("path", ["/dashboard/", PLOTLY])
async def test_browser_that_has_a_file_is_sent_none(browser: httpx.AsyncClient, path: str) -> None:
    etag = (await browser.head(path)).headers["etag"]
    for known in (etag, f'"other", {etag}', "*"):
        answer = await browser.get(path, headers={"if-none-match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await browser.head(path, headers={"if-none-match": '"other"'})).status_code == 200


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("br", False), ("", False), ("xgzip", False)],
)
async def test_file_is_compressed_for_whoever_takes_that(
    browser: httpx.AsyncClient, accepted: str, is_packed: bool
) -> None:
    answer = await browser.get("/dashboard/", headers={"accept-encoding": accepted})
    assert answer.content == (STATIC / "index.html").read_bytes()
    assert (answer.headers.get("content-encoding") == "gzip") == is_packed
    assert answer.headers["vary"] == "accept-encoding"
    async with browser.stream("GET", "/dashboard/", headers={"accept-encoding": accepted}) as raw:
        sent = b"".join([piece async for piece in raw.aiter_raw()])
    assert len(sent) == int(answer.headers["content-length"])


async def test_plotly_is_compressed_once_and_only_for_who_fetches_it(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "plotly" / "package_data" / "plotly.min.js"
    script.parent.mkdir(parents=True)
    script.write_text("charts()")
    packed: list[int] = []

    class Installed(metadata.PathDistribution):
        version = "9.9"

    def compress(content: bytes, **options: int) -> bytes:
        packed.append(len(content))
        return real(content, **options)

    real = gzip.compress
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(tmp_path / "plotly-9.9.dist-info"))
    monkeypatch.setattr(gzip, "compress", compress)
    head = await browser.head(PLOTLY)
    assert (head.status_code, head.headers["etag"], head.content) == (200, 'W/"9.9-8"', b"")
    assert packed == []
    for _ in range(2):
        assert (await browser.get(PLOTLY)).text == "charts()"
    assert packed == [8]


async def test_without_plotly_its_address_says_so(browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    answer = await browser.get(PLOTLY)
    assert code(answer) == (404, "not_found")
    assert "`plotly`" in answer.json()["error"]["message"]


async def test_plotlys_script_is_where_it_is_looked_for(browser: httpx.AsyncClient) -> None:
    assert (await browser.head(PLOTLY)).headers["content-type"].startswith("text/javascript")


async def test_files_make_no_labels_of_metrics(browser: httpx.AsyncClient) -> None:
    for name in [*FILES, "nothing", "session", ""]:
        await browser.get(f"/dashboard/{name}", headers=cookie(token()))
    text = browser._transport.app.state.metrics.exposition(None).decode()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if line.startswith("prefixgate_requests_total{")]
    assert {line.split('"')[1] for line in lines} == {"other", "/dashboard/session", "/dashboard/"}


async def test_nothing_of_the_admin_api_is_kept(browser: httpx.AsyncClient) -> None:
    for answer in (await browser.get("/admin/v1/thing"), await browser.get("/admin/v1/nothing")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
