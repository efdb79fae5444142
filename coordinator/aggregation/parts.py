"""The parts of a round's publication, by the names by which strategies and plans declare them."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.aggregation.bank_round import BankOfExperts
from coordinator.aggregation.base_delta import BaseDeltas
from coordinator.aggregation.changes import ComparedChanges
from coordinator.aggregation.outputs import OutputMixtures
from coordinator.aggregation.part import OldTensors, Part
from coordinator.aggregation.served_differences import ServedDifferences
from coordinator.aggregation.summed_round import SummedRound
from coordinator.strategies.opening import OpenedPlan
from coordinator.strategies.parts import PartName, declared_parts

PARTS: Mapping[PartName, type[Part]] = {
    PartName.CHANGES: ComparedChanges,
    PartName.SUM: SummedRound,
    PartName.BANK: BankOfExperts,
    PartName.BASE_DELTA: BaseDeltas,
    PartName.SERVED_DIFFERENCE: ServedDifferences,
    PartName.OUTPUTS: OutputMixtures,
}


def parts_of(opened: OpenedPlan) -> list[Part]:
    """Return new parts for one round under a plan, in order."""
    return [PARTS[name]() for name in declared_parts(opened)]


def old_tensors(federation_id: str, oldest_kept: int) -> list[OldTensors]:
    """Return what retention deletes of all parts."""
    # All parts, not those of the plan: its strategy may have been uninstalled, so that the plan cannot open.
    return [old for part in PARTS.values() for old in part.old_tensors(federation_id, oldest_kept)]
