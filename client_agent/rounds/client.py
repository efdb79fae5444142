"""A client in a federation, without its model: its identity (`Session`), its files (`Workspace`).

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from client_agent.agent_entries import RATES
from client_agent.errors import AnotherCoordinator, CoordinatorNotTrusted
from client_agent.identity.manifests import Manifests
from client_agent.identity.roster import Roster
from client_agent.policy import Policy, SentKind
from client_agent.privacy.budget import require_private, require_voices
from client_agent.rounds.strategy import load_strategy
from client_agent.storage.rate_store import RateStore
from client_agent.storage.round_folder import RoundFolders
from client_agent.transport.client import CoordinatorApi
from schemas.identity.keys import thumbprint
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief, SignedDocument
from schemas.messages.tokens import Hello
from schemas.trackers.trackers import NO_TRACKERS, Trackers


@dataclass(slots=True)
class Session:
    """A client's identity in a federation, its connection, and the documents that it has accepted.

    Attributes:
        home: the folder of accepted manifests and rosters.
        server_key: the coordinator's public key, as proved at enrolment.
        pins: public keys by client name, from the silo's `roster` setting.
        max_epsilon: the silo's limit on the privacy cost of sketches; None = the plan alone decides.
        max_delta: the largest delta at which `max_epsilon` may hold.
        min_voices: the least number of peers in a mixture.
        policy: the silo's rules for plans and updates.
        trackers: record losses, scores and sizes for the silo itself.
    """

    api: CoordinatorApi
    federation_id: str
    client_id: str
    server_key: str
    home: Path
    pins: Mapping[str, str] = field(default_factory=dict)
    max_epsilon: float | None = None
    max_delta: float = 1e-5
    min_voices: int = 1
    policy: Policy = field(default_factory=Policy)
    trackers: Trackers = NO_TRACKERS

    @property
    def manifests(self) -> Manifests:
        # On the coordinator's clock, so that a wrong local one makes no manifest look expired.
        return Manifests(self.home, self.federation_id, self.client_id, self.server_key, self.api.now)

    @property
    def roster(self) -> Roster:
        return Roster(self.home, self.manifests.plan.privacy.roster_policy, self.pins)

    def accept_manifest(
        self,
        manifest: SignedDocument | None,
        *,
        round_number: int,
        weights: str,
        brief: RoundBrief | None = None,
        final: bool = False,
    ) -> None:
        """Accept the coordinator's manifest of a round, with its plan and its roster.

        Raises:
            ManifestRefused, ManifestExpired, RosterRefused: a check fails.
        """
        manifests = self.manifests
        accepted = manifests.accept(
            manifest, self.api, round_number=round_number, weights=weights, final=final
        )
        if brief is not None:
            # After the manifest, which proves the plan.
            manifests.hold_to_plan(brief)
        # Before anything is trained for these members.
        self.roster.follow(accepted, self.api)

    def hello(self) -> Hello:
        """Fetch the coordinator's greeting, signed by the key of this client's enrolment.

        Raises:
            AnotherCoordinator: another key signs it, or none.
        """
        try:
            return self.api.proved_hello(thumbprint(self.server_key))
        except CoordinatorNotTrusted as error:
            raise AnotherCoordinator(self.api.url) from error

    def check_brief(self, brief: RoundBrief) -> None:
        """Check a brief against the federation's plan and the silo's limits, before anything is computed.

        Raises:
            ManifestRefused: the federation's plan differs.
            NotPrivateEnough: the plan's sketches cost more than the silo allows.
            TooFewVoices: the plan serves mixtures of fewer members than the silo allows.
            PolicyRefused: the silo's policy does not allow the plan.
        """
        self.check_plan()
        self.manifests.hold_to_plan(brief)
        if self.manifests.plan.privacy.secure_sum is None:  # else no sketch is sent
            require_private(brief.signature, self.max_epsilon, self.max_delta)
        require_voices(self.manifests.plan, self.min_voices)

    def check_plan(self) -> None:
        """Fetch the federation's plan unless it is stored, and check it against the silo's policy.

        Raises:
            PolicyRefused: the policy does not allow the plan.
        """
        manifests = self.manifests
        manifests.fetch_plan(self.api)
        require_policy(self.policy, manifests.plan, manifests.stored_plan)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The agent's files: `folder` holds the key and the privacy ledger, `home` one federation.

    `shared_rates` is a store of searched learning rates that several clients use, in place of their own.
    """

    folder: Path
    federation_id: str
    keep_rounds: int
    shared_rates: RateStore | None = None

    @property
    def home(self) -> Path:
        return self.folder / self.federation_id

    @property
    def rounds(self) -> RoundFolders:
        return RoundFolders(self.home / "rounds")

    @property
    def rates(self) -> RateStore:
        return self.shared_rates or RateStore(self.home / RATES)


class Client(Protocol):
    """An enrolled client: `sleep` waits, and raises `Stopped` if the agent is stopped."""

    @property
    def session(self) -> Session: ...

    @property
    def workspace(self) -> Workspace: ...

    @property
    def sleep(self) -> Callable[[float], None]: ...


def require_policy(policy: Policy, plan: FederationPlan, document: bytes | None) -> None:
    """Check a plan by every rule of a policy that needs no layout.

    Args:
        document: the plan as served, whose digest is checked; None = not served yet.

    Raises:
        PolicyRefused: a rule does not allow the plan.
        UnknownStrategy, StrategyOptionsInvalid: this agent is older than the plan.
    """
    policy.require_plan(plan, document)
    if policy.sends is not None:
        policy.require_kinds(sent_kinds(plan))


def sent_kinds(plan: FederationPlan) -> tuple[SentKind, ...]:
    """Return the kinds of data that agents of a plan send beside updates; progress is each silo's choice.

    A sum has no sketches. Its losses count as sent if no mask hides a member's from the coordinator.
    """
    summed = plan.privacy.secure_sum
    is_hidden = summed is not None and summed.scores == "summed" and summed.masking == "pairwise"
    parts = load_strategy(plan.strategy.name, plan.strategy.options).parts
    is_sent_by_kind: dict[SentKind, bool] = {
        "sketches": summed is None,
        "scores": not is_hidden,
        "alignment": plan.alignment is not None,
    }
    sent_by_parts = [part.sends for part in parts if part.sends is not None]
    return (*(kind for kind, is_sent in is_sent_by_kind.items() if is_sent), *sent_by_parts)
