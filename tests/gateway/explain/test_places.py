from __future__ import annotations

from gateway.explain.places import owners_of_blocks
from gateway.regions import Region


def test_blocks_name_all_whose_tokens_they_hold_and_the_answer() -> None:
    spans = [Region("template", 0, 3), Region("messages[0]", 3, 17), Region("template", 17, 18)]
    assert owners_of_blocks(spans, num_blocks=4, block_size=8) == [
        ["template", "messages[0]"],
        ["messages[0]"],
        ["messages[0]", "template", "answer"],
        ["answer"],
    ]
    assert owners_of_blocks(spans[:2], num_blocks=2, block_size=8) == [["template", "messages[0]"], ["messages[0]"]]
    assert owners_of_blocks([Region("messages[0]", 0, 16)], num_blocks=2, block_size=8) == [["messages[0]"]] * 2


def test_owners_are_not_known_without_regions() -> None:
    assert owners_of_blocks([], num_blocks=2, block_size=8) == [[], []]
