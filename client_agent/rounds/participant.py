"""Who takes part in rounds, with everything that lasts longer than one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject, parts_of
from client_agent.adapters.provenance import Origin, origin_of
from client_agent.adapters.rank_pruning import rank_of
from client_agent.adapters.variational.adapter import with_importance
from client_agent.alignment.pack_exchange import FramesInUse, archive_voided_pack, frames_for, redeliver_pack
from client_agent.identity.manifests import Manifests
from client_agent.identity.roster import Roster
from client_agent.privacy.budget import require_private, require_voices
from client_agent.rounds.byte_budget import require_affordable
from client_agent.rounds.train import Trained
from client_agent.storage.archive import move_aside
from client_agent.storage.round_folder import TRAINED, RoundFolders
from client_agent.strategies.base import AgentStrategy, Folding, LearnsImportance, RanksDiffer, load_strategy
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.maths.seeded_random import words
from schemas.messages.federations import AdapterPlan
from schemas.messages.rounds import RoundBrief, SignedDocument


@dataclass(slots=True)
class Participant:
    """A silo, its connection, identity and folders; and the frames once they are there."""

    silo: Silo
    api: CoordinatorApi
    federation: str
    client: str
    folder: Path
    keep_rounds: int
    stop: Callable[[], bool]
    server_key: str
    pins: Mapping[str, str] = field(default_factory=dict)
    max_epsilon: float | None = None
    min_voices: int = 1
    lora_rank: int | None = None
    _frames: FramesInUse | None = None

    @property
    def home(self) -> Path:
        """Where this federation's files are."""
        return self.folder / self.federation

    @property
    def rounds(self) -> RoundFolders:
        """The rounds on disk."""
        return RoundFolders(self.home / "rounds")

    @property
    def manifests(self) -> Manifests:
        """What the coordinator signed to us so far."""
        return Manifests(self.home, self.federation, self.client, self.server_key, self.api.now)

    def believe(
        self,
        manifest: SignedDocument | None,
        *,
        round_number: int,
        weights: str,
        brief: RoundBrief | None = None,
        final: bool = False,
    ) -> None:
        """Accept what the coordinator signed for a round, what it asks for, and whom it names as members.

        Raises:
            ManifestRefused, ManifestExpired, RosterRefused: as these say.
        """
        held = self.manifests
        accepted = held.accept(manifest, self.api, round_number=round_number, weights=weights, final=final)
        if brief is not None:
            held.hold_to_plan(brief)
        Roster(self.home, held.plan.privacy.roster_policy, self.pins).follow(accepted, self.api)

    def hold_to_plan(self, brief: RoundBrief) -> None:
        """Check what a round asks for before anything is computed for it.

        Raises:
            ManifestRefused: the federation's plan says something else.
            NotPrivateEnough: the silo does not allow what the plan says of signatures.
            TooFewVoices: nor mixtures of so few members.
        """
        self.manifests.fetch_plan(self.api)
        self.manifests.hold_to_plan(brief)
        require_private(brief.signature, self.max_epsilon)
        require_voices(self.manifests.plan, self.min_voices)

    def frames(self, brief: RoundBrief) -> FramesInUse:
        """Give the federation's frames, made or fetched once; after this the coordinator has our pack."""
        if self._frames is None:
            self._frames = frames_for(brief, self.silo, self.api, self.federation, self.home, self.stop)
        return self._frames

    def follow_packs(self, brief: RoundBrief) -> None:
        """Begin anew if our base model's pack ended: P and Q that were trained under it mean nothing now."""
        if brief.alignment is None:
            return
        slug = self.silo.base.slug
        if not archive_voided_pack(slug, self.api, self.federation, self.home):
            return
        self._frames = None
        for folder in self.rounds.newest_first():
            if folder.has(TRAINED):
                move_aside(folder.path / TRAINED, "trained under an alignment pack that ended")

    def deliver_pack_again(self, brief: RoundBrief) -> None:
        """Give the coordinator our base model's pack, which it had: it was restored from an older backup."""
        pivot = brief.alignment.pivot if brief.alignment is not None else ""
        redeliver_pack(self.silo.base.slug, pivot, self.api, self.federation, self.home)

    def injected(self, brief: RoundBrief) -> Adapter:
        """Put the plan's adapter around our base model; leaving its context takes it away."""
        strategy = load_strategy(brief.strategy.name, brief.strategy.options)
        adapter = inject(
            self.silo.base,
            self._adapter(strategy, brief),
            self.frames(brief).frames,
            gated=strategy.gated,
            seed=_seed_of_start(strategy, brief),
            parts=parts_of(strategy),
        )
        return with_importance(adapter, self.silo.base, strategy, seed=brief.training.seed)

    def _adapter(self, strategy: AgentStrategy, brief: RoundBrief) -> AdapterPlan:
        """Give the plan's adapter, of our own rank where a strategy lets ranks differ."""
        if not isinstance(strategy, RanksDiffer):
            return brief.adapter
        most = brief.adapter.rank
        wanted = min(most, max(strategy.pruning.least, self.lora_rank or most))
        last = self.rounds.newest_with(TRAINED, before=brief.round)
        rank = rank_of(Trained.read(last.path / TRAINED).adapter) if last is not None else wanted
        return brief.adapter.model_copy(update={"rank": rank})

    def require_affordable(self, brief: RoundBrief) -> None:
        """Check that our updates can fit what the plan lets travel, before a round is joined.

        Raises:
            BudgetTooSmall: they cannot.
        """
        strategy = load_strategy(brief.strategy.name, brief.strategy.options)
        if brief.wire.max_bytes is None and not isinstance(strategy, LearnsImportance):
            return
        with self.injected(brief) as adapter:
            require_affordable(brief, adapter.layout)

    def origin(self, brief: RoundBrief) -> Origin:
        """Say what `injected` puts there."""
        gated = load_strategy(brief.strategy.name, brief.strategy.options).gated
        frames = self.frames(brief).frames
        return origin_of(self.silo.base, brief.adapter, frames, gated=gated, seed=brief.training.seed)


def _seed_of_start(strategy: AgentStrategy, brief: RoundBrief) -> int:
    """Give the seed from which A starts: the plan's, or a round's own where every round begins anew."""
    seed = brief.training.seed
    if isinstance(strategy, Folding) and strategy.restarts:
        return int(words(1, "restart", seed, brief.round)[0] >> np.uint64(1))
    return seed
