"""The Grafana board and the alert rules name only what a gateway with traffic really shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from prefixcache.interface import Reason
from tests.dashboard.support.served import ServedGateway
from tests.dashboard.support.traffic import Traffic

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$job": ".*", "$instance": ".*"}
GIVEN_BY_PROMETHEUS = {"job", "instance", "le"}
NOT_PROVOKED = {("reason", reason.value) for reason in Reason} | {("status", "5..")}
"""Label values that may come and that the traffic here need not show."""

Series = dict[str, list[dict[str, str]]]


def board_expressions() -> Iterator[str]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield expression


EXPRESSIONS = [*board_expressions(), *(rule["expr"] for rule in RULES)]


async def scraped(gateway: ServedGateway) -> Series:
    series: Series = {"up": [{}]}
    for family in text_string_to_metric_families(await gateway.metrics()):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series


def unknown(expression: str, series: Series) -> list[str]:
    """What an expression names and no scrape has."""
    wrong: list[str] = []
    labels: set[str] = set(GIVEN_BY_PROMETHEUS)
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found = series.get(node.name)
            if found is None:
                wrong.append(node.name)
                return
            labels.update(*found)
            wrong.extend(f"{node.name}{{{m}}}" for m in node.matchers.matchers if not is_met(m, found))
        modifier = getattr(node, "modifier", None)
        matching = getattr(modifier, "matching", modifier)
        grouped.update(getattr(matching, "labels", ()))

    promql.walk(promql.parse(expression), visit)
    return [*wrong, *(grouped - labels)]


def is_met(matcher: Any, found: list[dict[str, str]]) -> bool:
    """Whether each value that is asked for is there."""
    if matcher.name in GIVEN_BY_PROMETHEUS:
        return True
    values = {labels.get(matcher.name, "") for labels in found}
    is_pattern = matcher.op == promql.MatchOp.Re
    wanted = matcher.value.split("|") if is_pattern else [matcher.value]
    return all(
        any(re.fullmatch(value, there) if is_pattern else value == there for there in values)
        or ((matcher.name, value) in NOT_PROVOKED and any(matcher.name in labels for labels in found))
        for value in wanted
    )


async def test_every_name_in_every_expression_is_in_a_scrape(gateway: ServedGateway, traffic: Traffic) -> None:
    series = await scraped(gateway)
    wrong = {expression: names for expression in EXPRESSIONS if (names := unknown(expression, series))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("rate(prefixgate_prompt_token_total[5m])", ["prefixgate_prompt_token_total"]),
        ('prefixgate_blocks{state="warm"}', ['prefixgate_blocks{state="warm"}']),
        ('prefixgate_blocks{kind="free"}', ['prefixgate_blocks{kind="free"}']),
        ("sum by (lane) (prefixgate_blocks)", ["lane"]),
        ("prefixgate_blocks / on (region) prefixgate_blocks", ["region"]),
    ],
)
async def test_a_wrong_name_is_seen(
    gateway: ServedGateway, traffic: Traffic, expression: str, names: list[str]
) -> None:
    assert unknown(expression, await scraped(gateway)) == names


def test_board_can_be_imported() -> None:
    assert BOARD["schemaVersion"] >= 36
    assert "id" not in BOARD
    source, *others = BOARD["templating"]["list"]
    assert (source["type"], source["name"]) == ("datasource", "source")
    assert [variable["name"] for variable in others] == ["job", "instance"]
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${source}"
            assert panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            refs = [target["refId"] for target in panel["targets"]]
            assert refs, panel["title"]
            assert len(set(refs)) == len(refs)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Overview", "Why not higher", "Prompts", "Requests", "Tenants", "Database"]


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"[0-9]+m", rule.get("for", "1m"))
