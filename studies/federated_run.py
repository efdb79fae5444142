"""Run one federated method: real enrolment and rounds over HTTP, by the silos of a crew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from client_agent.errors import RoundMissed
from client_agent.storage.round_folder import READY
from client_agent.transport.admin_client import Operator
from schemas.messages.alignment import Anchors
from schemas.messages.federations import FederationPlan
from schemas.messages.scores import Scores
from studies.crew import Crew
from studies.draws import drawn_in, rounds_by_silo
from studies.results import Cell, ClientResult, ClientRound
from studies.silo_work import (
    Enrol,
    FinalState,
    Join,
    ReadRoundNotes,
    RoundNotes,
    ScoreFinalWeights,
    SiloDescription,
    TakePart,
    TakePartInSum,
)
from studies.study import Study
from studies.study_fields import StudySilo

ReportProgress = Callable[[int, str], None]
"""Called with the number of finished rounds and the current activity."""

_POLL_SECONDS = 0.02
_PUBLISH_SECONDS = 600.0


@dataclass(slots=True)
class Federation:
    """A running federation: its crew, the names of its members and its operator."""

    study: Study
    crew: Crew
    operator: Operator
    id: str
    members: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/v1/federations/{self.id}"

    def enrol(self, silo: StudySilo) -> None:
        """Enrol a silo. The order of enrolments is that of the clients in sums."""
        tokens = f"{self.path}/enrolment-tokens"
        token = str(self.operator.post(tokens, {"client_name": silo.name})["token"])
        self.crew.run([silo.name], Enrol(token))
        self.members.append(silo.name)


def create_federation(
    cell: Cell, study: Study, crew: Crew, operator: Operator, anchors: Anchors | None
) -> Federation:
    """Create a federation with its anchors."""
    federation = str(operator.post("/v1/federations", cell.plan.model_dump(mode="json"))["id"])
    created = Federation(study, crew, operator, federation)
    plan = cell.plan
    distils = plan.strategy.options.get("distil") is not None
    has_use = plan.alignment is not None or distils or plan.training.anchor_pull > 0
    if has_use and anchors is not None:
        operator.put(f"{created.path}/anchors", anchors.model_dump(mode="json"))
    return created


def run_federated(
    federation: Federation, cell: Cell, described: dict[str, SiloDescription], report_progress: ReportProgress
) -> list[ClientResult]:
    """Run all rounds of a federation, and return the clients' results from its status and their folders.

    Its alignment packs are uploaded already, or made by its agents.

    Raises:
        RoundMissed: an update was not counted, or final weights were not scored.
        AgentError: an agent failed.
    """
    federation.operator.post(f"{federation.path}/start")
    noted: dict[str, list[RoundNotes]] = {}
    sums, total = cell.plan.privacy.secure_sum is not None, cell.plan.rounds.total
    for number in range(1, total + 1):
        report_progress(number - 1, "")
        activity = partial(report_progress, number - 1)
        for name, note in _run_round(federation, cell.plan, number, activity, sums=sums).items():
            noted.setdefault(name, []).append(note)
    finals = federation.crew.run(
        federation.members,
        ScoreFinalWeights(),
        lambda name, _: report_progress(total, f"{name}: scoring the final weights"),
    )
    report_progress(total, "")
    return _results(federation, cell, described, noted, finals)


def _run_round(
    federation: Federation,
    plan: FederationPlan,
    round_number: int,
    report_activity: Callable[[str], None],
    *,
    sums: bool,
) -> dict[str, RoundNotes]:
    """Run a round with the members that it draws, wait until it is published, and return what they noted."""
    crew, established = federation.crew, list(federation.members)
    for silo in federation.study.silo:
        # Enrolled between rounds, as a real latecomer finds an open round.
        if silo.joins_after == round_number - 1:
            federation.enrol(silo)
    newcomers = [name for name in federation.members if name not in set(established)]
    if len(federation.members) > len(federation.study.founders):
        # A round ends when enough have delivered and nobody who joined is waited for. Founders are enough:
        # all join before the first of them delivers, or the last would come too late.
        crew.run(established, Join(round_number))
    members = drawn_in(plan, round_number, [*newcomers, *established])
    # Where updates are summed, members wait for each other: first all train, then all sum.
    work = TakePart(round_number, until=READY if sums else None)
    # Newcomers first: they join when they take part, and workers that finish the founders earlier would close
    # the round without them.
    for part in ([m for m in members if m in newcomers], [m for m in members if m not in newcomers]):
        if part:
            crew.run(part, work, lambda name, _: report_activity(name))
    if sums:
        report_activity("summing")
        # In threads: members of a sum wait for each other's messages.
        crew.run(members, TakePartInSum(), at_once=True)
    # Before the next round, which deletes the folder of this one.
    noted = crew.run(members, ReadRoundNotes(round_number))
    wait_until_published(federation, round_number)
    return noted


def wait_until_published(federation: Federation, round_number: int) -> None:
    """Poll until a round is published; raise RoundMissed after a timeout."""
    deadline = time.monotonic() + _PUBLISH_SECONDS
    # Agents would poll and wait; asking often here keeps a run of many short rounds fast.
    while federation.operator.get(f"{federation.path}/rounds/{round_number}")["state"] != "published":
        if time.monotonic() > deadline:
            raise RoundMissed(
                f"round {round_number} was not published within {_PUBLISH_SECONDS:.0f} s; "
                "see coordinator.log, and run the comparison again"
            )
        time.sleep(_POLL_SECONDS)


def _results(
    federation: Federation,
    cell: Cell,
    described: dict[str, SiloDescription],
    noted: dict[str, list[RoundNotes]],
    finals: dict[str, FinalState],
) -> list[ClientResult]:
    """Read every client's scores and bytes from the operator API, and add what only it has."""
    by_silo: dict[str, list[ClientRound]] = {silo.name: [] for silo in federation.study.silo}
    for round_number in range(1, cell.plan.rounds.total + 1):
        for participation in federation.operator.get(f"{federation.path}/rounds/{round_number}")["clients"]:
            # A method that lost an update would be compared under other conditions than the rest.
            if participation["state"] != "arrived" or participation["scores"] is None:
                raise RoundMissed(
                    f"{participation['name']}'s update of round {round_number} is {participation['state']}; "
                    "run the comparison again"
                )
            rounds = by_silo[participation["name"]]
            note = noted[participation["name"]][len(rounds)]
            rounds.append(
                ClientRound(
                    round=round_number,
                    scores=Scores.model_validate(participation["scores"]),
                    validation=note.validation,
                    tasks=note.tasks,
                    bytes_up=participation["bytes"]["up"],
                    bytes_down=participation["bytes"]["down"],
                )
            )
    expected = rounds_by_silo(federation.study, cell.plan)
    for silo in federation.study.silo:
        if len(by_silo[silo.name]) != expected[silo.name]:
            raise RoundMissed(f"{silo.name} missed a round; run the comparison again")
    return [
        ClientResult(
            name=silo.name,
            base_model=described[silo.name].base_model,
            joins_after=silo.joins_after,
            rounds=by_silo[silo.name],
            final=finals[silo.name].scores,
            learning_rate=noted[silo.name][-1].learning_rate,
            forgetting=finals[silo.name].forgetting,
            measures=finals[silo.name].measures,
        )
        for silo in federation.study.silo
    ]
