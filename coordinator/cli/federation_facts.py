"""A federation in a terminal: a summary with the next command, and on request the plan with its claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coordinator.cli.output import ago, print_facts

ENDED = ("published", "abandoned")
"""The states in which a round stays."""


def print_federation(federation: Mapping[str, Any], *, shows_plan: bool = False) -> None:
    """Print the summary of a federation; `shows_plan` adds its plan, packs and claims."""
    print_facts({**summary(federation), **(_plan(federation) if shows_plan else _plan_command(federation))})


def summary(federation: Mapping[str, Any]) -> dict[str, object]:
    """Return the id, state, counts and next command of a federation."""
    least, clients = federation["plan"]["rounds"]["min_clients"], federation["clients"]
    revoked = f", {clients['revoked']} revoked" if clients["revoked"] else ""
    return {
        "id": federation["id"],
        "name": federation["name"],
        "state": federation["state"],
        "next": next_command(federation),
        "round": f"{round_of(federation)} of {federation['plan']['rounds']['total']}",
        "clients": f"{clients['enrolled']} enrolled{revoked}; a round waits for {least}",
        "created": ago(federation["created_at"]),
    }


def next_command(federation: Mapping[str, Any]) -> str:
    """Return the operator's next command in the state of a federation."""
    federation_id, state = federation["id"], federation["state"]
    if state == "finished":
        return f"tessera round list {federation_id}"
    enrolled = federation["clients"]["enrolled"]
    # Anchors first: a federation that needs them cannot start without, and clients align on them.
    if state == "open" and not enrolled and _needs_anchors(federation["plan"]):
        return f"tessera anchors put {federation_id} anchors.json"
    if enrolled < federation["plan"]["rounds"]["min_clients"]:
        return f"tessera enrolment create {federation_id} NAME"
    return f"tessera {'round watch' if state == 'running' else 'federation start'} {federation_id}"


def round_of(federation: Mapping[str, Any]) -> str:
    """Return the number and the state of the current round; `-` before the first."""
    current = federation["round"]
    return f"{current['number']} ({current['state']})" if current else "-"


def _needs_anchors(plan: Mapping[str, Any]) -> bool:
    """Whether the federation cannot start before an operator has stored anchor texts."""
    alignment = plan["alignment"]
    is_fitted = alignment is not None and bool(alignment["frames"] != "random")
    distils = plan["strategy"]["options"].get("distil") is not None
    # A coordinator of an older version has no such field.
    return is_fitted or distils or bool(plan["training"].get("anchor_pull"))


def _plan_command(federation: Mapping[str, Any]) -> dict[str, object]:
    return {"plan": f"tessera federation show {federation['id']} --plan"}


def _plan(federation: Mapping[str, Any]) -> dict[str, object]:
    from schemas.messages.federations import SignaturePlan
    from schemas.privacy import guarantee

    plan = federation["plan"]
    return {
        **{key: _line(value) for key, value in plan.items() if key != "name"},
        "privacy of a record": guarantee(SignaturePlan.model_validate(plan["signature"])) or "-",
        **{pack["base_model"]: pack["sharing"] for pack in federation["alignment"]},
        **{f"claim {number}": claim for number, claim in enumerate(federation["claims"], 1)},
    }


def _line(value: object) -> str:
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    return ", ".join(f"{key}={json.dumps(item)}" for key, item in value.items())
