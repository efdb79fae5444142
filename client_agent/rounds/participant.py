"""A client that can train: its identity and files, and its model and data (`Trainer`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from client_agent.adapters.provenance import Origin, origin_of
from client_agent.alignment.pack_delivery import archive_voided_pack, redeliver_pack
from client_agent.alignment.pack_exchange import FramesInUse, frames_for
from client_agent.alignment.pivot_wait import PivotWait
from client_agent.errors import PivotPackAwaited
from client_agent.policy import Policy
from client_agent.rounds.client import Session, Workspace
from client_agent.rounds.opened_round import OpenedBrief, adapter_plan, sent_layout
from client_agent.rounds.part import Setting
from client_agent.rounds.served_weights import StoredWeights
from client_agent.sketches.gradient import Sketch
from client_agent.storage.rate_store import RateStore
from client_agent.training.checkpoint import CHECKPOINT_SECONDS
from client_agent.training.ranks import Structure
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.messages.federations import AdapterPlan
from schemas.messages.rounds import RoundBrief
from schemas.trackers.trackers import NO_TRACKERS, Trackers

if TYPE_CHECKING:
    from client_agent.identity.agent_folder import Membership


@dataclass(slots=True)
class Trainer:
    """A silo's model and data, and the frames of the federation.

    Attributes:
        stop: whether training must stop.
        lora_rank: the silo's first rank under a strategy with mixed ranks; None = the plan's.
        checkpoint_seconds: how often the position inside a round's training is stored.
        reports_progress: whether the progress of training is reported to the coordinator.
        pivot_wait: the time that this agent has waited for the pivot's pack.
        sketches: gradient sketches without differential privacy, by shared model and plan.
    """

    silo: Silo
    session: Session
    stop: Callable[[], bool]
    lora_rank: int | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    reports_progress: bool = False
    pivot_wait: PivotWait = field(default_factory=PivotWait)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    _frames: FramesInUse | None = None

    def frames(self, brief: RoundBrief) -> FramesInUse:
        """Return the federation's frames, built or downloaded once, and deliver the base model's pack."""
        # Once per start: frames stay the same until the pack is voided, and reading them is slow.
        if self._frames is None:
            session = self.session
            try:
                self._frames = frames_for(
                    brief,
                    self.silo,
                    session.api,
                    session.federation_id,
                    session.home,
                    self.stop,
                    self.pivot_wait,
                )
            except PivotPackAwaited as awaited:
                self.pivot_wait.goes_on(awaited)
                raise
        return self._frames

    def drop_ended_pack(self) -> bool:
        """Archive the base model's pack if the coordinator has ended it; return whether it did."""
        session = self.session
        if not archive_voided_pack(self.silo.base.slug, session.api, session.federation_id, session.home):
            return False
        self._frames = None
        return True

    def redeliver_pack(self, brief: RoundBrief) -> None:
        """Upload the base model's pack again, to a coordinator restored from an older backup."""
        pivot = brief.alignment.pivot if brief.alignment is not None else ""
        session = self.session
        try:
            redeliver_pack(self.silo.base.slug, pivot, session.api, session.federation_id, session.home)
        except PivotPackAwaited as awaited:
            self.pivot_wait.goes_on(awaited)
            raise
        self.pivot_wait.ended()

    def setting(self, opened: OpenedBrief, state: State | None, served: StoredWeights | None) -> Setting:
        """Return what the plan's adapter is put around; `state` is this client's last adapter."""
        return Setting(
            silo=self.silo,
            plan=adapter_plan(opened, state, self.lora_rank),
            frames=self.frames(opened.brief).frames,
            seed=opened.start_seed,
            max_length=opened.brief.training.max_length,
            home=self.session.home,
            served=served,
        )

    def followed(self, opened: OpenedBrief, state: State | None) -> AbstractContextManager[None]:
        """Make the other processes of torchrun wrap their models in the same adapter, if there are any."""
        if self.silo.ranks is None:
            return nullcontext()
        structure = Structure(
            adapter_plan(opened, state, self.lora_rank),
            opened.brief.strategy,
            opened.strategy.options.gated,
            opened.start_seed,
            self.frames(opened.brief).frames,
        )
        return self.silo.ranks.followed(self.silo.base, structure)

    def layout(self, opened: OpenedBrief, state: State | None) -> Layout:
        """Return the layout of what the adapter would send, without touching the model."""
        # Only P and Q have frames, and asking for frames may build a pack.
        framed = self.frames(opened.brief).frames if opened.brief.adapter.kind == "pq" else None
        return sent_layout(opened, self.silo.profile, framed, state, self.lora_rank)

    def first_adapter(self, opened: OpenedBrief) -> AdapterPlan:
        """Return the adapter of this client's first round, whatever has been pruned since."""
        return adapter_plan(opened, None, self.lora_rank)

    def origin(self, opened: OpenedBrief) -> Origin:
        brief, gated = opened.brief, opened.strategy.options.gated
        frames = self.frames(brief).frames
        return origin_of(self.silo.base, brief.adapter, frames, gated=gated, seed=brief.training.seed)


def _keep_nothing(participant: Participant) -> None:
    """Add no revisions, as for simulated clients."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A client that can take part in rounds.

    Attributes:
        sleep: waits, and raises `Stopped` if the agent is stopped.
        keep_revisions: adds the states that this silo kept to its revisions, and exports them if it wants to;
            returns the seconds until a step that failed is tried again, or None.
    """

    session: Session
    workspace: Workspace
    trainer: Trainer
    sleep: Callable[[float], None] = time.sleep
    keep_revisions: Callable[[Participant], float | None] = _keep_nothing

    @classmethod
    def of(
        cls,
        silo: Silo,
        api: CoordinatorApi,
        member: Membership,
        folder: Path,
        *,
        keep_rounds: int,
        stop: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
        pins: Mapping[str, str] | None = None,
        max_epsilon: float | None = None,
        max_delta: float = 1e-5,
        min_voices: int = 1,
        policy: Policy | None = None,
        lora_rank: int | None = None,
        rates: RateStore | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        reports_progress: bool = False,
        trackers: Trackers = NO_TRACKERS,
        keep_revisions: Callable[[Participant], float | None] = _keep_nothing,
    ) -> Participant:
        workspace = Workspace(folder, member.federation_id, keep_rounds, rates)
        session = Session(
            api=api,
            federation_id=member.federation_id,
            client_id=member.client_id,
            server_key=member.server_key,
            home=workspace.home,
            pins=pins or {},
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            min_voices=min_voices,
            policy=policy or Policy(),
            trackers=trackers,
        )
        trainer = Trainer(silo, session, stop, lora_rank, checkpoint_seconds, reports_progress)
        return cls(session, workspace, trainer, sleep, keep_revisions)
