"""PromQL expressions of deploy/monitoring, and the series that they select."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as promql
import yaml

from tests.acceptance.deployment.composition import ROOT

FOLDER = ROOT / "deploy" / "monitoring"
ALERTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"][0][
    "rules"
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every series that it scrapes."""


@dataclass(frozen=True)
class Selection:
    """A metric's name, and the conditions on its labels as patterns that match whole values."""

    name: str
    matchers: tuple[tuple[str, str, bool], ...]  # label, pattern, whether it must match

    def takes(self, labels: dict[str, str]) -> bool:
        return all(
            (re.fullmatch(pattern, labels.get(label, "")) is not None) is expected
            for label, pattern, expected in self.matchers
            if label not in OF_PROMETHEUS
        )


def expressions() -> dict[str, str]:
    """Return all expressions by where they are."""
    texts = {f"alert {rule['alert']}": rule["expr"] for rule in ALERTS}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            texts[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    return texts


def nodes(expression: Any) -> Iterator[Any]:
    """Yield an expression and all within it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(expression, name, None)
        if child is not None:
            yield from nodes(child)
    for argument in getattr(expression, "args", ()):
        yield from nodes(argument)


def selections(text: str) -> list[Selection]:
    """Return what an expression selects; an expression that is no PromQL fails."""
    return [
        Selection(
            node.name,
            tuple(
                (
                    matcher.name,
                    matcher.value if matcher.op in _REGULAR else re.escape(matcher.value),
                    matcher.op in (promql.MatchOp.Equal, promql.MatchOp.Re),
                )
                for matcher in node.matchers.matchers
            ),
        )
        for node in nodes(promql.parse(text))
        if isinstance(node, promql.VectorSelector)
    ]


def groupings(text: str) -> set[str]:
    """Return the labels by which an expression groups, and those of its legend."""
    return {
        label
        for node in nodes(promql.parse(text))
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    }


_REGULAR = (promql.MatchOp.Re, promql.MatchOp.NotRe)
