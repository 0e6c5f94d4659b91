"""Pictures of each page with traffic on it: `python -m tests.dashboard.screenshots [--out docs/images] [--minutes 15]`."""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, FloatRect

from tests.dashboard.support.browser import NARROW, WIDE, Faults, login, opened_page, running_browser
from tests.dashboard.support.served import ServedGateway, serving
from tests.dashboard.support.traffic import PROMPT, Traffic

OUT = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 200_000
_MAX_HEIGHT = 1600
"""CSS pixels of a picture; lists go on below."""
_ROUND_SECONDS = 5.0
_SETTLE_MILLISECONDS = 2_500
"""For an update of the live numbers and the charts behind it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A page as it is shown in the documents."""

    name: str
    route: str
    width: int = WIDE
    dark: bool = False


def pictures(request_id: str) -> list[Picture]:
    """All there are; `request_id` is the one to look into."""
    return [
        Picture("overview", "/overview?span=1h"),
        Picture("overview-dark", "/overview?span=1h", dark=True),
        Picture("overview-narrow", "/overview?span=1h", width=NARROW),
        Picture("why", "/why?span=1h"),
        Picture("prompts", "/prompts"),
        Picture("prompt", f"/prompts/{PROMPT}"),
        Picture("requests", "/requests"),
        Picture("request", f"/requests/{request_id}"),
        Picture("tenants", "/tenants"),
    ]


async def take_all(gateway: ServedGateway, out: Path, seconds: float) -> list[Path]:
    """Send traffic for so long and take every picture.

    Raises: AssertionError: what went wrong in a page, or a picture that is too large.
    """
    traffic = Traffic(gateway)
    await traffic.everything()
    await _go_on(traffic, seconds)
    await traffic.close()
    made = []
    async with running_browser() as browser:
        for picture in pictures(await _half_cached_request(gateway)):
            made.append(out / f"{picture.name}.png")
            made[-1].write_bytes(await _take(browser, gateway.url, picture))
    return made


async def _go_on(traffic: Traffic, seconds: float) -> None:
    """Send rounds of traffic, more chats in some than in others, so that charts have something to show."""
    until = time.monotonic() + seconds
    for number in itertools.count():
        await traffic.chats(3 + number % 4, 3)
        await traffic.desk(1 + number % 3)
        if number % 5 == 0:
            await traffic.crowd(4)
        if time.monotonic() + _ROUND_SECONDS > until:
            return
        await asyncio.sleep(_ROUND_SECONDS)


async def _half_cached_request(gateway: ServedGateway) -> str:
    """The newest that was a hit and still had much to compute."""
    rows = (await gateway.get("/requests", status=200, min_cached_tokens=1, min_prompt_tokens=200))["data"]
    return min(rows, key=lambda row: abs(row["num_cached_tokens"] / row["num_prompt_tokens"] - 0.5))["request_id"]


async def _take(browser: Browser, url: str, picture: Picture) -> bytes:
    faults = Faults()
    async with opened_page(browser, url, faults, width=picture.width, dark=picture.dark) as page:
        await login(page, route=picture.route)
        await page.wait_for_timeout(_SETTLE_MILLISECONDS)
        height = await page.evaluate("document.documentElement.scrollHeight")
        clip = FloatRect(x=0, y=0, width=picture.width, height=min(height, _MAX_HEIGHT))
        data = _small(await page.screenshot(full_page=True, clip=clip))
    assert not faults.found(), (picture.route, faults.found())
    assert len(data) <= MAX_BYTES, f"{picture.name}: got {len(data)} bytes, wanted at most {MAX_BYTES}"
    return data


def _small(png: bytes) -> bytes:
    """The same with a palette: flat colours lose nothing by it, and take a third."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def main() -> int:
    """Write the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder (default: docs/images)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="how long traffic is sent before (default: one round)"
    )
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as gateway:
        for file in asyncio.run(take_all(gateway, out, 60 * options.minutes)):
            sys.stdout.write(f"{file} {file.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
