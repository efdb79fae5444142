"""Run one federated method: real enrolment and rounds over HTTP, the clients of a round in sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client_agent.adapters.variational.measures import MeasuresFile
from client_agent.alignment.pack import Pack
from client_agent.errors import RoundMissed
from client_agent.identity.membership import enrol, read_key
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.final_weights import finish
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import resume, take_part
from client_agent.rounds.trained import Trained
from client_agent.simulation.admin_client import Operator
from client_agent.simulation.forgetting import Forgetting
from client_agent.simulation.pack_cache import body_for_federation
from client_agent.simulation.results import Cell, ClientResult, ClientRound
from client_agent.simulation.study import Study
from client_agent.simulation.study_fields import StudySilo
from client_agent.storage.final_scores import FinalScores, TaskScores, read_final_scores
from client_agent.storage.rate_store import RateStore
from client_agent.storage.round_folder import MEASURES, READY, TRAINED, RoundFolders
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.alignment import Anchors
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.messages.scores import Scores
from schemas.trackers.trackers import NO_TRACKERS, Trackers

ReportProgress = Callable[[int, str], None]
"""Called with the number of finished rounds and the current activity."""

_POLL_SECONDS = 0.02
_PUBLISH_SECONDS = 600.0
_DEADLINE_SECONDS = 60.0


@dataclass(slots=True)
class Federation:
    """A running federation: its silos, its enrolled members and its operator."""

    study: Study
    silos: dict[str, Silo]
    operator: Operator
    id: str
    folder: Path
    opened: ExitStack
    rates: RateStore
    trackers: Trackers
    members: dict[str, Participant] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v1/federations/{self.id}"

    def enrol(self, silo: StudySilo) -> None:
        """Enrol a silo, as `tessera agent enrol` does."""
        folder = self.folder / silo.name
        tokens = f"{self.path}/enrolment-tokens"
        token = str(self.operator.post(tokens, {"client_name": silo.name})["token"])
        profile = self.silos[silo.name].profile
        with CoordinatorApi(self.operator.url, key=None, deadline_seconds=_DEADLINE_SECONDS) as api:
            membership = enrol(api, folder, token=token, name=silo.name, profile=profile)
        api = self.opened.enter_context(
            CoordinatorApi(
                self.operator.url,
                key=read_key(folder),
                server_key=membership.server_key,
                deadline_seconds=_DEADLINE_SECONDS,
            )
        )
        self.members[silo.name] = Participant.of(
            *(self.silos[silo.name], api, membership, folder),
            keep_rounds=1,
            lora_rank=silo.lora_rank,
            rates=self.rates,
            trackers=self.trackers.named(silo.name),
        )


@contextmanager
def create_federation(
    cell: Cell,
    study: Study,
    silos: dict[str, Silo],
    operator: Operator,
    folder: Path,
    anchors: Anchors | None,
    rates: RateStore,
    trackers: Trackers = NO_TRACKERS,
) -> Iterator[Federation]:
    """Create a federation with its anchors; close its members' connections at the end."""
    federation = str(operator.post("/v1/federations", cell.plan.model_dump(mode="json"))["id"])
    with ExitStack() as opened:
        created = Federation(study, silos, operator, federation, folder, opened, rates, trackers)
        if cell.plan.alignment is not None and anchors is not None:
            operator.put(f"{created.path}/anchors", anchors.model_dump(mode="json"))
        yield created


@dataclass(slots=True)
class _Noted:
    """What clients keep to themselves, noted while their round folders are there."""

    validation: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    tasks: dict[str, list[dict[str, TaskScores]]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    forgetting: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, participant: Participant, round_number: int) -> None:
        folder = participant.workspace.rounds.newest_with(TRAINED, before=round_number + 1)
        if folder is None:
            raise RoundMissed(f"{name} has no file of round {round_number}; run the comparison again")
        trained = Trained.read(folder.path / TRAINED)
        self.validation.setdefault(name, []).append(trained.validation)
        self.tasks.setdefault(name, []).append(trained.tasks)
        self.rates[name] = trained.learning_rate


def run_federated(
    federation: Federation,
    cell: Cell,
    packs: dict[str, Pack],
    forgetting: Forgetting | None,
    report_progress: ReportProgress,
) -> list[ClientResult]:
    """Run all rounds of a federation, and return the clients' results from its status and their folders.

    Args:
        packs: alignment packs by base model, the pivot's first; agents make missing ones.
        forgetting: measures the final models, if the study has anchor texts.

    Raises:
        RoundMissed: an update was not counted, or final weights were not scored.
        AgentError: an agent failed.
    """
    for slug, pack in packs.items():
        body = body_for_federation(pack, federation.id)
        federation.operator.put_tensors(f"{federation.path}/alignments/{slug}", body)
    federation.operator.post(f"{federation.path}/start")
    noted = _Noted()
    for round_number in range(1, cell.plan.rounds.total + 1):
        report_progress(round_number - 1, "")
        activity = partial(report_progress, round_number - 1)
        sums = cell.plan.privacy.secure_sum is not None
        _run_round(federation, round_number, noted, activity, sums=sums)
    for name, participant in federation.members.items():
        report_progress(cell.plan.rounds.total, f"{name}: scoring the final weights")
        answer = participant.session.api.current_round(federation.id)
        if isinstance(answer, FinishedBrief):
            finish(participant, answer)
        if forgetting is not None:
            silo = federation.silos[name]
            with adapter_of_round(silo, participant.workspace.home, None, "kept"):
                noted.forgetting[name] = forgetting.of(silo.base)
    report_progress(cell.plan.rounds.total, "")
    return _results(federation, cell, noted)


def _run_round(
    federation: Federation,
    round_number: int,
    noted: _Noted,
    report_activity: Callable[[str], None],
    *,
    sums: bool,
) -> None:
    """Run a round with all members, and wait until it is published."""
    established = dict(federation.members)
    for silo in federation.study.silo:
        if silo.joins_after == round_number - 1:
            federation.enrol(silo)
    newcomers = {
        name: participant for name, participant in federation.members.items() if name not in established
    }
    if len(federation.members) > len(federation.study.founders):
        # A round ends when enough have delivered and nobody who joined is waited for. Founders are enough:
        # all join before the first of them delivers, or the last would come too late.
        for participant in established.values():
            participant.session.api.join(federation.id, round_number, None)
    members = newcomers | established
    for name, participant in members.items():
        report_activity(name)
        answer = participant.session.api.current_round(federation.id)
        # Where updates are summed, members wait for each other: first all train, then all sum.
        until = READY if sums else None
        if (
            not isinstance(answer, RoundBrief)
            or answer.round != round_number
            or not take_part(participant, answer, until=until)
        ):
            raise RoundMissed(f"{name} found round {round_number} closed; run the comparison again")
    if sums:
        report_activity("summing")
        sum_at_once(members)
    for name, participant in members.items():
        noted.note(name, participant, round_number)
    wait_until_published(federation, round_number)


def sum_at_once(members: Mapping[str, Participant]) -> None:
    """Run the sum of all members that are ready, each in a thread of its own. Needs no torch.

    Raises:
        AgentError: the first error of a member, in their order.
    """
    with ThreadPoolExecutor(len(members), thread_name_prefix="sum") as threads:
        for summed in [threads.submit(resume, participant) for participant in members.values()]:
            summed.result()


def wait_until_published(federation: Federation, round_number: int) -> None:
    """Poll until a round is published; raise RoundMissed after a timeout."""
    deadline = time.monotonic() + _PUBLISH_SECONDS
    while federation.operator.get(f"{federation.path}/rounds/{round_number}")["state"] != "published":
        if time.monotonic() > deadline:
            raise RoundMissed(
                f"round {round_number} was not published within {_PUBLISH_SECONDS:.0f} s; "
                "see coordinator.log, and run the comparison again"
            )
        time.sleep(_POLL_SECONDS)


def _results(federation: Federation, cell: Cell, noted: _Noted) -> list[ClientResult]:
    """Read every client's scores and bytes from the operator API, and what only it has from its folder."""
    by_silo: dict[str, list[ClientRound]] = {silo.name: [] for silo in federation.study.silo}
    for round_number in range(1, cell.plan.rounds.total + 1):
        for participation in federation.operator.get(f"{federation.path}/rounds/{round_number}")["clients"]:
            if participation["state"] != "arrived" or participation["scores"] is None:
                raise RoundMissed(
                    f"{participation['name']}'s update of round {round_number} is {participation['state']}; "
                    "run the comparison again"
                )
            rounds = by_silo[participation["name"]]
            rounds.append(
                ClientRound(
                    round=round_number,
                    scores=Scores.model_validate(participation["scores"]),
                    validation=noted.validation[participation["name"]][len(rounds)],
                    tasks=noted.tasks[participation["name"]][len(rounds)],
                    bytes_up=participation["bytes"]["up"],
                    bytes_down=participation["bytes"]["down"],
                )
            )
    for silo in federation.study.silo:
        if len(by_silo[silo.name]) != cell.plan.rounds.total - silo.joins_after:
            raise RoundMissed(f"{silo.name} missed a round; run the comparison again")
    return [
        ClientResult(
            name=silo.name,
            base_model=federation.silos[silo.name].base.slug,
            joins_after=silo.joins_after,
            rounds=by_silo[silo.name],
            final=_final_scores(federation.members[silo.name]),
            learning_rate=noted.rates[silo.name],
            forgetting=noted.forgetting.get(silo.name),
            measures=_measures(federation.members[silo.name].workspace.rounds),
        )
        for silo in federation.study.silo
    ]


def _final_scores(participant: Participant) -> FinalScores:
    scores = read_final_scores(participant.workspace.home)
    if scores is None:
        name = participant.workspace.folder.name
        raise RoundMissed(
            f"{name}'s final weights were not scored; see the log, and run the comparison again"
        )
    return scores


def _measures(rounds: RoundFolders) -> MeasuresFile | None:
    """Read the newest importance measures of a client, if any."""
    folder = next((folder for folder in rounds.newest_first() if folder.has(MEASURES)), None)
    return MeasuresFile.model_validate_json(folder.read(MEASURES)) if folder is not None else None
