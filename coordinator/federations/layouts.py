"""The layout of a client's update under a federation's plan. Pure."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.strategies.base import make
from coordinator.strategies.capabilities import MoreTravels, PartTravels
from schemas.maths.adapter import Layout
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan


def layout_of(plan: FederationPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Return the layout of a client's update, {} while a federation with alignment lacks the client's pack.

    Args:
        pack_selected: (block, role)s that the client's pack selects; None without a pack.
    """
    if plan.alignment is not None and pack_selected is None:
        return {}
    strategy = make(plan.strategy.name, plan.strategy.options)
    return client_layout(
        plan.adapter,
        profile,
        pack_selected,
        travels=strategy.travels if isinstance(strategy, PartTravels) else lambda _: True,
        beside=strategy.beside if isinstance(strategy, MoreTravels) else lambda _: {},
    )
