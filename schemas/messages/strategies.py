"""Messages about the strategies that a coordinator has."""

from __future__ import annotations

from pydantic import JsonValue

from schemas.messages.base import Strict


class StrategyView(Strict):
    """A strategy that federations of this coordinator can have."""

    name: str
    """Its name in a plan."""
    summary: str
    """A sentence about it, with the paper of the method."""
    plan: dict[str, JsonValue]
    """The plan of a federation of one base model that names only this strategy, with `recommended=true`."""


class StrategyList(Strict):
    """The strategies of a coordinator, by name."""

    items: list[StrategyView]
    """The strategies."""
