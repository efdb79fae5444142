"""Negative transfer: a federated method against the same clients trained alone. Pure."""

from __future__ import annotations

from typing import Literal

from schemas.messages.base import Strict
from schemas.messages.scores import LOSS
from studies.outcomes import Rule
from studies.report.estimates import (
    Estimate,
    Pairing,
    Verdict,
    estimate,
    pairing,
    verdict_of,
)
from studies.report.runs import Runs

Difference = Literal["adapter", "rate"]


class Transfer(Strict):
    """Test loss of a federated method minus that of its control, over founders; above 0 = negative transfer.

    Attributes:
        control: the method that trains alone on the same data, in the same steps.
        differs: which of `adapter` and `rate` the plans of both do not have in common.
        verdict: of the mean over clients.
        clients: each client's difference over the seeds.
        losers: the clients whose loss is higher beyond the noise.
        unjudged: whether one seed leaves the noise unknown.
        worst_client: the client with the largest difference.
    """

    control: str
    differs: list[Difference]
    loss: Pairing
    verdict: Verdict
    clients: dict[str, Estimate]
    losers: list[str]
    unjudged: bool
    worst_client: str

    @property
    def worst(self) -> Estimate:
        return self.clients[self.worst_client]


def transfer_of(rule: Rule, runs: Runs, control: str, control_runs: Runs) -> Transfer | None:
    """Compare a method with its control; return None without a seed that all methods have."""
    founders = [silo.name for silo in runs.study.founders]
    federated = runs.paired_values(LOSS, rule, founders)
    alone = control_runs.paired_values(LOSS, rule, founders)
    paired = pairing(federated, alone, lower_is_better=True)
    if paired is None:
        return None
    clients = {
        name: estimate([federated[seed][name] - alone[seed][name] for seed in sorted(federated)])
        for name in founders
    }
    return Transfer(
        control=control,
        differs=_differences(runs, control_runs),
        loss=paired,
        verdict=verdict_of(paired.seeds),
        clients=clients,
        losers=[name for name, difference in clients.items() if verdict_of(difference) == "higher"],
        unjudged=paired.seeds.error is None,
        worst_client=max(clients, key=lambda name: clients[name].mean),
    )


def _differences(runs: Runs, control_runs: Runs) -> list[Difference]:
    plan, control = runs.results[0].plan, control_runs.results[0].plan
    equal: dict[Difference, bool] = {
        "adapter": plan.adapter == control.adapter,
        "rate": plan.training.learning_rate == control.training.learning_rate,
    }
    return [name for name, is_equal in equal.items() if not is_equal]
