"""Plans of federations, validated."""

from __future__ import annotations

from typing import Any

from schemas.messages.federations import FederationPlan


def federation_plan(
    strategy: str | dict[str, Any] = "fedavg", options: dict[str, Any] | None = None, **parts: Any
) -> FederationPlan:
    """Validate a plan of a strategy: `federation_plan("flora", rounds={"total": 3})`."""
    if isinstance(strategy, str):
        strategy = {"name": strategy} | ({"options": options} if options is not None else {})
    return FederationPlan.model_validate({"name": "clinics", "strategy": strategy} | parts)
