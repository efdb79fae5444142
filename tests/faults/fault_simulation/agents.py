"""Agents with the product's daemon, journal, retries and manifests, and with simulated training.

What an agent "learns" in a round is a one-hot vector of its own, and noise that no second training repeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.adapters.base import State
from client_agent.adapters.provenance import Origin
from client_agent.alignment.pack_exchange import FramesInUse
from client_agent.daemon import run
from client_agent.errors import AgentError, CoordinatorRefused, CoordinatorUnreachable
from client_agent.experts.bank_files import experts_of, read_index
from client_agent.experts.memory import EXPERTS, ExpertMemory
from client_agent.experts.part import BankOfExperts
from client_agent.identity.agent_folder import is_enrolled, read_membership
from client_agent.identity.key_rotation import Connect, current_key, replace_key
from client_agent.identity.membership import enrol
from client_agent.model.examples import Example
from client_agent.rounds import final_weights, sketch
from client_agent.rounds import steps as agent_round
from client_agent.rounds.examine import Exam
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.part import Part, Setting
from client_agent.rounds.participant import Participant, Trainer
from client_agent.rounds.train import LocalTraining
from client_agent.rounds.training_result import TrainingResult
from client_agent.sketches.gradient import Sketch
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.maths.adapter import Layout, pq_layout
from schemas.messages.enrolment import Profile
from schemas.messages.private_training import CAPABILITY as PRIVATE_TRAINING
from schemas.messages.rounds import RoundBrief
from schemas.messages.scores import Score, Scores
from schemas.messages.secure_sum import CAPABILITY as SUMS
from schemas.wire.digests import digest_of
from tests.faults.fault_simulation.experts import Injected, InjectedBank
from tests.faults.fault_simulation.fault_rates import NOISE, Plan
from tests.faults.fault_simulation.meaning import flat as flattened
from tests.faults.fault_simulation.network import Network
from tests.faults.fault_simulation.packs import BaseModel, base_model_of, packs_without_models
from tests.faults.fault_simulation.private import EXAMPLES, sketches
from tests.faults.fault_simulation.replicas import AUTHORITY
from tests.faults.fault_simulation.scheduler import Process
from tests.scene.coordinator import PROFILE

if TYPE_CHECKING:
    from tests.faults.fault_simulation.world import World

T = TypeVar("T")

_DEADLINE_SECONDS = 45.0  # longer than a long poll
_SCORE = {"loss": Score(value=1.0, count=4)}


@dataclass
class SimulatedSilo:
    """A simulated silo: a stand-in for a model and its data."""

    index: int
    world: World
    attempts: int = 0
    trainer = ranks = None  # neither a trainer of its own nor other processes
    validation = test = ()  # no example is held out

    @property
    def base(self) -> BaseModel:
        """Stands for the base model."""
        return self.model_named(base_model_of(self.world.plan, self.index))

    def model_named(self, slug: str) -> BaseModel:
        """Stand for loading a base model: every agent can load the pivot."""
        return BaseModel(slug, self.world, self.index)

    def shared_source(self, _: str) -> None:
        """Stand for finding the shared model: it is the silo's own."""

    def require_fit(self, _: int) -> None:
        """Stand for a check that every example fits."""

    @property
    def data(self) -> SimulatedSilo:
        """Stands for the examples too."""
        return self

    @property
    def train(self) -> tuple[Example, ...]:
        return EXAMPLES

    def encoded(self, examples: Sequence[Example], _: int) -> tuple[str, ...]:
        """Stand for the tokens of examples."""
        return tuple(example.key for example in examples)


class SimulatedTrainer(Trainer):
    """A trainer without a model."""

    def frames(self, brief: RoundBrief) -> FramesInUse:
        """There are none where base models are not aligned."""
        return super().frames(brief) if brief.alignment is not None else FramesInUse({}, None)

    def layout(self, opened: OpenedBrief, state: State | None) -> Layout:
        return pq_layout(["b0.q"], opened.brief.adapter.rank)

    def origin(self, opened: OpenedBrief) -> Origin:
        return Origin(
            base_model=self.silo.base.slug,
            precision="none",
            adapter=opened.brief.adapter,
            gated=False,
            seed=0,
            frames=digest_of(b""),
        )


def trained_values(plan: Plan, number: int, index: int, attempt: int) -> NDArray[np.float32]:
    """Return the values that an agent trains in a round: a 1 at its own place, and noise at the end."""
    flat = np.zeros(plan.values, np.float32)
    flat[plan.place(number, index)] = 1.0
    noise = random.Random(f"{number} {index} {attempt}")
    flat[-NOISE:] = [noise.gauss(0.0, 10.0 ** noise.randint(-2, 2)) for _ in range(NOISE)]
    return flat


def _train(training: LocalTraining) -> TrainingResult:
    silo, adapter = cast(Any, training.silo), cast(Any, training.adapter)
    round_number, start, private = training.round_number, training.start, training.private
    world: World = silo.world
    if private is not None:
        world.oracle.steps_begun.take(private, private.payments.ledger.folder)
    in_time = world.scheduler.now > world.faults_ended_at  # else a plan of short rounds would go on for ever
    is_sluggish = world.plan.sluggish and silo.index == world.plan.agents - 1 and not in_time
    world.scheduler.sleep(world.scheduler.dice.uniform(0.5, 40.0 if is_sluggish else 4.0))
    silo.attempts += 1
    flat = trained_values(world.plan, round_number, silo.index, silo.attempts)
    world.oracle.meaning.record_training(silo.index, round_number, flat, flattened(adapter.shared(start)))
    rank = world.plan.rank
    adapter_state = {"b0.q.P": flat[: rank * rank].reshape(rank, rank), "b0.q.Q": flat[rank * rank :]}
    adapter_state = adapter.trained(world, (silo.index, round_number, silo.attempts), start, adapter_state)
    scores = Scores(served=_SCORE, trained=_SCORE, kept="trained")
    origin, rate = training.origin, training.learning_rate
    return TrainingResult(adapter_state, {}, {}, {}, {}, scores, origin, rate, {}, {})


def _sketch(trainer: Any, _: object) -> Sketch:
    return Sketch(np.array([1.0, float(trainer.silo.index), 0.0, 0.0], np.float32), 1.0)


def _put_in_place(setting: Setting, parts: Sequence[Part], *, gated: bool = False) -> Injected:
    layout = pq_layout(["b0.q"], setting.plan.rank)
    for part in parts:
        if isinstance(part, BankOfExperts) and setting.served is not None:
            _, *specialists = experts_of(read_index(setting.served.folder))
            return InjectedBank(layout, specialists, ExpertMemory(setting.home / EXPERTS))
    return Injected(layout)


@contextmanager
def _final_adapter(*_: object) -> Iterator[Injected]:
    yield Injected({})


class _Examiner:
    """Scores the final weights without a model."""

    def __init__(self, *_: object) -> None:
        pass

    def examine(self, _: object) -> Exam:
        return Exam("", _SCORE, None)


@contextmanager
def without_models() -> Iterator[None]:
    """Replace training by one without a model."""
    with (
        patch.object(agent_round, "train_locally", _train),
        patch.object(agent_round, "put_in_place", _put_in_place),
        patch.object(agent_round, "prepare", lambda *_: None),
        patch.object(sketch, "compute_sketch", _sketch),
        patch.object(sketch, "record_sketches", sketches),
        patch.object(final_weights, "adapter_of_round", _final_adapter),
        patch.object(final_weights, "Examiner", _Examiner),
        packs_without_models(),
    ):
        yield


class Agent(Process):
    """One process of an agent, from its start to its death; its folder outlives it."""

    def __init__(
        self,
        world: World,
        index: int,
        token: str,
        *,
        life: int = 0,
        thief: bool = False,
        rotating: bool = False,
    ) -> None:
        super().__init__(f"{'thief' if thief else 'agent'}-{index}.{life}")
        self.world, self.index, self.token, self.life, self.thief = world, index, token, life, thief
        self.rotating = rotating
        self.number = world.plan.agents if thief else index
        self.folder = world.disks.folder / self.name.partition(".")[0]
        self.client: str | None = None
        self.api: CoordinatorApi | None = None
        world.scheduler.spawn(self, self._live)

    @property
    def client_name(self) -> str:
        """The client name of its enrolment token."""
        return f"c{self.index}"

    def _connect(self, key: Ed25519PrivateKey | None = None, server_key: str | None = None) -> CoordinatorApi:
        world = self.world
        api = CoordinatorApi(
            f"http://{AUTHORITY}",
            key=key,
            server_key=server_key,
            deadline_seconds=_DEADLINE_SECONDS,
            sleep=world.scheduler.sleep,
            transport=Network(world, self.number),
        )
        if api._signing is not None:
            api._signing._clock = lambda: world.clock_of_agent(self.number)
        return api

    def _live(self) -> None:
        try:
            self._take_part()
        except CoordinatorRefused as refusal:
            self._refused(refusal)
        except AgentError as error:
            self.world.violated("an agent never gives up", f"{self.name}: {type(error).__name__}: {error}")
        self.alive = False
        self.world.agent_is_done(self)

    def _refused(self, refusal: CoordinatorRefused) -> None:
        allowed = {
            "key-revoked": self.client in self.world.oracle.revoked,
            "enrolment-token-invalid": self.world.plan.thief,
            "federation-state": self.world.oracle.ledger.is_finished,
        }
        if not allowed.get(refusal.slug, False):
            self.world.violated("an agent never gives up", f"{self.name}: {refusal.slug}")

    def _take_part(self) -> None:
        world = self.world
        self.folder.mkdir(parents=True, exist_ok=True)
        while not is_enrolled(self.folder):
            self._enrol()
        member = read_membership(self.folder)
        self.client = member.client_id

        def connect(key: Ed25519PrivateKey) -> CoordinatorApi:
            return self._connect(key, member.server_key)

        while self.rotating:
            self._replace_key(connect)
        api = self.api = connect(self._insist(lambda: current_key(connect, self.folder)))
        silo = world.silos.setdefault(self.number, SimulatedSilo(self.index, world))
        if self.thief:
            return
        product = Participant.of(cast("Silo", silo), api, member, self.folder, keep_rounds=2)
        trainer = SimulatedTrainer(cast("Silo", silo), product.session, lambda: False)
        sleep = world.scheduler.sleep
        run(replace(product, trainer=trainer, sleep=sleep), sleep)

    def _replace_key(self, connect: Connect) -> None:
        try:
            replace_key(connect, self.folder, at_once=self.world.plan.at_once)
            self.world.count("keys replaced")
            self.rotating = False
        except CoordinatorUnreachable:
            self.world.scheduler.sleep(5.0)

    def _insist(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except CoordinatorUnreachable:
                self.world.scheduler.sleep(5.0)

    def _enrol(self) -> None:
        try:
            enrol(
                self._connect(None),
                self.folder,
                token=self.token,
                name=self.client_name,
                profile=Profile.model_validate(
                    PROFILE
                    | {"base_model": base_model_of(self.world.plan, self.index)}
                    | {"capabilities": [SUMS, PRIVATE_TRAINING]}
                ),
            )
        except CoordinatorUnreachable:
            self.world.scheduler.sleep(5.0)
        except CoordinatorRefused as refusal:
            is_paused = refusal.slug == "federation-state" and not self.world.oracle.ledger.is_finished
            if not is_paused and refusal.slug != "validation":  # the clock jumped: the nonce is too old
                raise
            self.world.scheduler.sleep(5.0)
