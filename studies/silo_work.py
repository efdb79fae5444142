"""The steps of a silo in a run: each can be repeated after a kill, and continues from the silo's folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

from client_agent.adapters.variational.measures import MeasuresFile
from client_agent.errors import RoundMissed
from client_agent.identity.agent_folder import is_enrolled
from client_agent.identity.membership import enrol
from client_agent.rounds.checkpoints import adapter_of_round
from client_agent.rounds.final_weights import finish
from client_agent.rounds.standalone import train_alone
from client_agent.rounds.steps import resume, take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.final_scores import FinalScores, TaskScores, read_final_scores
from client_agent.storage.round_folder import MEASURES, TRAINED, RoundFolders
from client_agent.transport.client import CoordinatorApi
from schemas.messages.rounds import FinishedBrief, RoundBrief
from studies.crew import DEADLINE_SECONDS, SiloHost
from studies.results import ClientResult, ClientRound
from studies.run_records import TextCount, count_texts


@dataclass(frozen=True, slots=True)
class SiloDescription:
    """The base model of a silo, and its texts."""

    base_model: str
    texts: TextCount


@dataclass(frozen=True, slots=True)
class DescribeSilo:
    """Load a silo's model and data."""

    def __call__(self, host: SiloHost, name: str) -> SiloDescription:
        silo = host.silo(name)
        return SiloDescription(silo.base.slug, count_texts(silo, host.cell.plan.training.max_length))


@dataclass(frozen=True, slots=True)
class MakePack:
    """Make the alignment pack of a silo's base model, or of the pivot, unless it is stored."""

    is_pivot: bool = False

    def __call__(self, host: SiloHost, name: str) -> bytes | None:
        pack = host.pack(name, is_pivot=self.is_pivot)
        return pack.to_body() if pack is not None else None


@dataclass(frozen=True, slots=True)
class TrainAlone:
    """Train a silo without a federation, from its beginning."""

    def __call__(self, host: SiloHost, name: str) -> ClientResult:
        plan, silo, rounds = host.cell.plan, host.silo(name), list[ClientRound]()
        pack, forgetting = host.pack(name), host.forgetting(name)
        body = pack.to_body() if pack is not None else None
        rate, forgot = nan, None
        for number, trained in enumerate(
            train_alone(
                silo,
                plan,
                body,
                lambda: False,
                host.rates,
                host.folder,
                trackers=host.trackers.named(name),
                texts=host.texts,
            ),
            start=1,
        ):
            rounds.append(
                ClientRound(
                    round=number, scores=trained.scores, validation=trained.validation, tasks=trained.tasks
                )
            )
            rate = trained.learning_rate
            if number == plan.rounds.total and forgetting is not None:
                forgot = forgetting.of(silo.base)  # the adapter is in the model until the iterator ends
            host.report(name, number)
        return ClientResult(
            name=name,
            base_model=silo.base.slug,
            joins_after=host.entry(name).joins_after,
            rounds=rounds,
            learning_rate=rate,
            forgetting=forgot,
        )


@dataclass(frozen=True, slots=True)
class Enrol:
    """Enrol a silo, as `tessera agent enrol` does."""

    token: str

    def __call__(self, host: SiloHost, name: str) -> None:
        folder = host.folder / name
        # Repeated after a kill: a token is valid once.
        if is_enrolled(folder):
            return
        with CoordinatorApi(host.url, key=None, deadline_seconds=DEADLINE_SECONDS) as api:
            enrol(api, folder, token=self.token, name=name, profile=host.silo(name).profile)


@dataclass(frozen=True, slots=True)
class Join:
    """Join a round early, without a sketch."""

    round: int

    def __call__(self, host: SiloHost, name: str) -> None:
        session = host.member(name).session
        session.api.join(session.federation_id, self.round, None)


@dataclass(frozen=True, slots=True)
class TakePart:
    """Take part in a round, at most `until` the file of a step exists."""

    round: int
    until: str | None = None

    def __call__(self, host: SiloHost, name: str) -> None:
        member = host.member(name)
        folder = member.workspace.rounds.open(self.round)
        if folder.finished or (self.until is not None and folder.has(self.until)):
            return  # a host that was killed had come so far
        answer = member.session.api.current_round(member.session.federation_id)
        if (
            not isinstance(answer, RoundBrief)
            or answer.round != self.round
            or not take_part(member, answer, until=self.until)
        ):
            raise RoundMissed(f"{name} found round {self.round} closed; run the comparison again")


@dataclass(frozen=True, slots=True)
class TakePartInSum:
    """Finish the sum of a round for a silo that is ready. Needs no torch."""

    def __call__(self, host: SiloHost, name: str) -> None:
        resume(host.member(name))


@dataclass(frozen=True, slots=True)
class RoundNotes:
    """The private records of a silo about a round."""

    validation: dict[str, float]
    tasks: dict[str, TaskScores]
    learning_rate: float


@dataclass(frozen=True, slots=True)
class ReadRoundNotes:
    """Read a silo's private records of a round before its folder is deleted."""

    round: int

    def __call__(self, host: SiloHost, name: str) -> RoundNotes:
        folder = host.member(name).workspace.rounds.newest_with(TRAINED, before=self.round + 1)
        if folder is None:
            raise RoundMissed(f"{name} has no file of round {self.round}; run the comparison again")
        trained = TrainingResult.read(folder.path / TRAINED)
        return RoundNotes(trained.validation, trained.tasks, trained.learning_rate)


@dataclass(frozen=True, slots=True)
class FinalState:
    """The state of a silo at the end of a federation."""

    scores: FinalScores
    forgetting: float | None = None
    measures: MeasuresFile | None = field(default=None)


@dataclass(frozen=True, slots=True)
class ScoreFinalWeights:
    """Score the final weights of a silo."""

    def __call__(self, host: SiloHost, name: str) -> FinalState:
        member, silo = host.member(name), host.silo(name)
        answer = member.session.api.current_round(member.session.federation_id)
        if isinstance(answer, FinishedBrief):
            finish(member, answer)
        forgetting, forgot = host.forgetting(name), None
        if forgetting is not None:
            # What the silo ends with, which may be the model of its last round.
            with adapter_of_round(silo, member.workspace.home, None, "kept"):
                forgot = forgetting.of(silo.base)
        scores = read_final_scores(member.workspace.home)
        if scores is None:
            raise RoundMissed(
                f"{name}'s final weights were not scored; see the log, and run the comparison again"
            )
        return FinalState(scores, forgot, _measures(member.workspace.rounds))


def _measures(rounds: RoundFolders) -> MeasuresFile | None:
    """Read the newest importance measures of a client, if any."""
    folder = next((folder for folder in rounds.newest_first() if folder.has(MEASURES)), None)
    return MeasuresFile.model_validate_json(folder.read(MEASURES)) if folder is not None else None
