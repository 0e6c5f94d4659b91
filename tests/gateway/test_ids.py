from __future__ import annotations

import re

from gateway.ids import RandomIds


def test_ids_never_come_twice_whichever_pool_they_are_of() -> None:
    ids = RandomIds()
    given = [ids.next() for _ in range(1000)]
    assert len(set(given)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in given)
