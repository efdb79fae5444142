"""The layout of a client's update under a federation's plan, and whether two can be summed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, is_of_one_base_model, module_of
from schemas.maths.layout import client_layout
from schemas.messages.enrolment import Profile


def layout_of(opened: OpenedPlan, profile: Profile, pack_selected: Collection[str] | None) -> Layout:
    """Return the layout of a client's update, {} while a federation with alignment lacks the client's pack.

    Args:
        pack_selected: (block, role)s that the client's pack selects; None without a pack.
    """
    plan, options = opened.plan, opened.options
    if plan.alignment is not None and pack_selected is None:
        return {}
    return client_layout(plan.adapter, profile, pack_selected, travels=options.travels, beside=options.beside)


@dataclass(frozen=True, slots=True)
class SummedLayout:
    """The facts by which the updates of two clients can be summed.

    `alignment_set` is that of the client's pack; None = it has none, or its acceptance test failed.
    """

    base_model: str
    layout: Layout
    alignment_set: str | None

    def fits(self, peer: SummedLayout) -> bool:
        """Whether both have the same tensors, and these mean the same.

        Tensors of a (layer, role) mean the same only within one base model, those of a (block, role) also
        for clients whose packs are of one alignment set.
        """
        if self.layout != peer.layout:
            return False
        if self.base_model == peer.base_model:
            return True
        if any(is_of_one_base_model(module_of(tensor)) for tensor in self.layout):
            return False
        return self.alignment_set is not None and self.alignment_set == peer.alignment_set
