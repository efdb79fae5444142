"""Store scores as named numbers with counts, of the served weights and of the trained adapter.

Revision: 0018, after 0017. Events from before lose the scores that they carry: the means are read from the
rounds. Stored plans stay as they are, byte for byte: signed manifests name their digests. Going back deletes
scores without exact match and those of final weights, which an earlier version cannot store; in the plans
that it could not read, the learning rate `auto` becomes .01, and fields that it does not know are removed:
a federation without Q (`adapter.bias` false) cannot go on there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_SCORES = sa.table(
    "scores",
    sa.column("round_id", sa.Integer()),
    sa.column("client_id", sa.String()),
    sa.column("scores", sa.JSON()),
)
_EVENTS = sa.table(
    "events",
    sa.column("federation_id", sa.String()),
    sa.column("number", sa.Integer()),
    sa.column("kind", sa.String()),
    sa.column("data", sa.JSON()),
)
_FEDERATIONS = sa.table("federations", sa.column("id", sa.String()), sa.column("plan", sa.JSON()))
_NEW_FIELDS = (
    ("", "scores"),
    ("training", "schedule_floor"),
    ("alignment", "pivot_pack_by_any_client"),
    ("adapter", "bias"),
)
_EARLIER_RATE = 0.01
_NAMES = ("loss", "perplexity", "exact_match")
_LARGEST_EXPONENT = 700.0


def upgrade() -> None:
    _convert(_named)
    _clear_events()


def downgrade() -> None:
    _convert(_before_and_after)
    _clear_events()
    _restore_plans()


def _convert(convert: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Replace every client's scores; delete those that have no counterpart."""
    connection = op.get_bind()
    for round_id, client_id, scores in connection.execute(sa.select(_SCORES)).all():
        row = (_SCORES.c.round_id == round_id) & (_SCORES.c.client_id == client_id)
        converted = convert(scores)
        if converted is None:
            connection.execute(sa.delete(_SCORES).where(row))
        else:
            connection.execute(sa.update(_SCORES).where(row).values(scores=converted))


def _clear_events() -> None:
    connection = op.get_bind()
    keys = connection.execute(
        sa.select(_EVENTS.c.federation_id, _EVENTS.c.number).where(
            _EVENTS.c.kind == "round", _EVENTS.c.data["scores"]["mean"]["loss"].as_string().is_not(None)
        )
    ).all()
    for federation_id, number in keys:
        row = (_EVENTS.c.federation_id == federation_id) & (_EVENTS.c.number == number)
        data = connection.execute(sa.select(_EVENTS.c.data).where(row)).scalar_one()
        connection.execute(sa.update(_EVENTS).where(row).values(data=data | {"scores": None}))


def _restore_plans() -> None:
    """Make the plans of newer federations readable for the earlier version; others stay unchanged."""
    connection = op.get_bind()
    for federation_id, plan in connection.execute(sa.select(_FEDERATIONS)).all():
        restored = _earlier_plan(plan)
        if restored != plan:
            row = _FEDERATIONS.c.id == federation_id
            connection.execute(sa.update(_FEDERATIONS).where(row).values(plan=restored))


def _earlier_plan(plan: dict[str, Any]) -> dict[str, Any]:
    restored = {part: dict(fields) if isinstance(fields, dict) else fields for part, fields in plan.items()}
    for part, name in _NEW_FIELDS:
        fields = restored.get(part) if part else restored
        if fields is not None:
            fields.pop(name, None)
    if restored.get("training", {}).get("learning_rate") == "auto":
        restored["training"]["learning_rate"] = _EARLIER_RATE
    return restored


def _named(old: dict[str, Any]) -> dict[str, Any]:
    def named(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
        return {name: {"value": metrics[name], "count": old["examples"]} for name in _NAMES}

    return {"served": named(old["before"]), "trained": named(old["after"]), "kept": "trained", "final": None}


def _before_and_after(new: dict[str, Any]) -> dict[str, Any] | None:
    if any("exact_match" not in new[side] for side in ("served", "trained")):
        return None

    def metrics(scores: dict[str, dict[str, float]]) -> dict[str, float]:
        loss = scores["loss"]["value"]
        perplexity = scores.get("perplexity", {"value": math.exp(min(loss, _LARGEST_EXPONENT))})
        return {
            "loss": loss,
            "perplexity": perplexity["value"],
            "exact_match": scores["exact_match"]["value"],
        }

    return {
        "before": metrics(new["served"]),
        "after": metrics(new["trained"]),
        "examples": new["trained"]["loss"]["count"],
    }
