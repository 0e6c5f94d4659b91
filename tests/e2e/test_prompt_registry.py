"""A registered prompt on the real model: warm after a restart of everything, and pinned against all other traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_BLOCKS, BLOCK_SIZE = 200, 32
SYSTEM = " ".join(f"Rule {number}: answer parcel question {number} politely and in one line." for number in range(89))
SMALL = "You translate for sailors and never for pirates, whatever they pay. " * 5


def admin(server: Server) -> httpx.Client:
    headers = {"authorization": f"Bearer {server.admin_key}"}
    return httpx.Client(base_url=f"{server.url}/admin/v1", headers=headers, timeout=120)


def register(server: Server, name: str, text: str, **fields: Any) -> dict[str, Any]:
    with admin(server) as client:
        answer = client.post("/prompts", json={"name": name, "text": text, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json()["versions"][0])


def num_cached(server: Server, system: str, user: str = "Where is my parcel?") -> int:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 2, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_registered_prompt_is_cached_after_a_restart_and_stays_through_traffic_of_three_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIXGATE_DB", f"sqlite+aiosqlite:///{tmp_path}/prefixgate.db")
    options = ["--num-blocks", str(NUM_BLOCKS), "--block-size", str(BLOCK_SIZE), "--warm-budget", "120"]
    with Server(options) as server:
        version = register(server, "parcels", SYSTEM, retention={"pin": True})
        small = register(server, "sailors", SMALL, retention={"priority": 5})
        assert 1450 <= version["num_tokens"] <= 1600
        with admin(server) as client:
            refused = client.post("/prompts", json={"name": "more", "text": f"{SMALL * 3}", "retention": {"pin": True}})
        assert refused.status_code == 409
        assert f"{version['num_blocks']} of at most {NUM_BLOCKS // 4} are pinned" in refused.json()["error"]["message"]

    with Server(options) as server:  # everything is new but the database
        assert num_cached(server, SYSTEM) == version["num_blocks"] * BLOCK_SIZE
        for number in range(3 * NUM_BLOCKS * BLOCK_SIZE // 1000):
            num_cached(server, f"Traffic {number}. " + "Some text that nobody sends twice, word by word. " * 100)
        assert num_cached(server, SYSTEM, "And now?") == version["num_blocks"] * BLOCK_SIZE
        assert num_cached(server, SMALL) == small["num_blocks"] * BLOCK_SIZE
        cache = server.cache()
        assert cache["counters"]["evicted_blocks"] > 2 * NUM_BLOCKS  # type: ignore[index]
        assert cache["pinned_blocks_max"] <= cache["pinned_blocks_limit"] == NUM_BLOCKS // 4
        assert cache["shared_blocks_max"] <= cache["shared_blocks_limit"]
        with admin(server) as client:
            shown = client.get("/prompts/parcels").json()
            statistics = client.get("/prompts/parcels/statistics").json()
        assert (shown["warm"]["status"], shown["warm"]["pinned"]) == ("warm", True)
        assert (statistics["num_requests"], statistics["num_hits"]) == (2, 2)
