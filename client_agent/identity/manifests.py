"""Hold the coordinator to what it signed: each round's manifest follows the one before, none is taken back.

Two manifests that cannot both be true are kept as evidence. Knows nothing of training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_agent.errors import AnswerUnreadable, ManifestExpired, ManifestRefused
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import MANIFEST
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import public_key
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief, RoundManifest, SignedDocument
from schemas.wire.digests import digest_of

_PLAN = "plan.json"
_EVIDENCE = "evidence"
_GRACE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Manifests:
    """What one coordinator signed to one client, below a folder.

    Attributes:
        server_key: the coordinator's public key, as enrolment proved it.
        clock: gives seconds since 1970, on the coordinator's clock.
    """

    folder: Path
    federation: str
    client: str
    server_key: str
    clock: Callable[[], float] = time.time

    def accept(
        self,
        document: SignedDocument | None,
        api: CoordinatorApi,
        *,
        number: int,
        weights: str,
        final: bool = False,
    ) -> RoundManifest:
        """Check a round's manifest against its weights and all manifests before it; keep it.

        The `final` one may have a higher number: rounds that were abandoned lie between.

        Raises:
            ManifestRefused: not signed, not ours, going back, leaving out or contradicting another.
            ManifestExpired: its deadline is over.
        """
        manifest = self.read(document)
        expected = max(number, manifest.round) if final else number
        if (manifest.round, manifest.weights) != (expected, weights):
            raise ManifestRefused(f"it is not of round {number} and of the weights that are served for it")
        held = self.held()
        if held is not None and document != held:
            self.follow(document or {}, manifest, held, api)
        self._hold_to_plan(manifest, api)
        if manifest.deadline is not None and self.clock() > manifest.deadline.timestamp() + _GRACE_SECONDS:
            raise ManifestExpired(number)
        write_durably(self.folder / MANIFEST, json.dumps(document).encode())
        return manifest

    @property
    def plan(self) -> FederationPlan:
        """The plan that was fetched; once a manifest is accepted, the one that it names."""
        return FederationPlan.model_validate_json((self.folder / _PLAN).read_bytes(), extra="ignore")

    def fetch_plan(self, api: CoordinatorApi) -> None:
        """Keep the plan that is served, unless one is here: each manifest then has to name this very one.

        Raises:
            AnswerUnreadable: what is served is none.
        """
        if (self.folder / _PLAN).exists():
            return
        plan = api.plan(self.federation)
        try:
            FederationPlan.model_validate_json(plan, extra="ignore")
        except ValidationError as error:
            raise AnswerUnreadable("the federation's plan", str(error)) from error
        write_durably(self.folder / _PLAN, plan)

    def hold_to_plan(self, brief: RoundBrief) -> None:
        """Check that a brief asks for what the plan says.

        Raises:
            ManifestRefused: it asks for something else.
        """
        plan = self.plan
        for part in ("strategy", "adapter", "training", "signature", "alignment", "wire"):
            if getattr(brief, part) != getattr(plan, part):
                raise ManifestRefused(
                    f"round {brief.round} asks for another {part} than the federation's plan"
                )

    def hold_to_order(self, number: int) -> None:
        """Check that what is asked for is not a round before one that was joined.

        Raises:
            ManifestRefused: it is.
        """
        held = self.held()
        if held is not None and number < (last := self.read(held).round):
            raise ManifestRefused(f"it is asked for round {number}, and round {last} was joined before")

    def has_joined(self, number: int) -> bool:
        """Say whether the coordinator has signed that this client is in a round, or in a later one."""
        held = self.held()
        return held is not None and self.read(held).round >= number

    def read(self, document: SignedDocument | None) -> RoundManifest:
        """Read a manifest of this client's, whatever round it is of.

        Raises:
            ManifestRefused: it is none, not signed with the coordinator's key, or not this client's.
        """
        try:
            manifest = RoundManifest.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise ManifestRefused("it is not a manifest") from error
        if not is_signed("tessera-round-v1", document or {}, manifest.signature, public_key(self.server_key)):
            raise ManifestRefused("it is not signed with the coordinator's key")
        if (manifest.federation, manifest.client) != (self.federation, self.client):
            raise ManifestRefused("it is another federation's or another client's")
        return manifest

    def held(self) -> SignedDocument | None:
        """Give the newest manifest that was accepted."""
        file = self.folder / MANIFEST
        document: SignedDocument | None = json.loads(file.read_bytes()) if file.exists() else None
        return document

    def follow(
        self, document: SignedDocument, manifest: RoundManifest, held: SignedDocument, api: CoordinatorApi
    ) -> None:
        """Go back from a manifest to the one that is held, over those that never arrived here.

        Raises:
            ManifestRefused: it does not lead there; the two that contradict each other are kept.
        """
        last = self.read(held)
        if manifest.round == last.round:
            self._contradiction(document, held, f"there are two manifests of round {last.round}")
        if manifest.round < last.round:
            self._contradiction(document, held, f"round {last.round} was joined before")
        if manifest.plan != last.plan:
            self._contradiction(document, held, "the plan was changed")
        self._check_roster(document, manifest, held, last)
        at = manifest
        while at.previous is not None and at.previous.round > last.round:
            missing = api.manifest(self.federation, at.previous.round)
            if hash_of(missing) != at.previous.hash:
                self._contradiction(document, missing, f"round {at.previous.round} is told differently")
            at = self.read(missing)
        if at.previous is None or (at.previous.round, at.previous.hash) != (last.round, hash_of(held)):
            self._contradiction(document, held, f"it does not follow the manifest of round {last.round}")

    def _check_roster(
        self, document: SignedDocument, manifest: RoundManifest, held: SignedDocument, last: RoundManifest
    ) -> None:
        if manifest.roster_version < last.roster_version:
            self._contradiction(document, held, "the roster went back")
        if manifest.roster_version == last.roster_version and manifest.roster_hash != last.roster_hash:
            self._contradiction(document, held, f"there are two rosters of version {last.roster_version}")

    def _hold_to_plan(self, manifest: RoundManifest, api: CoordinatorApi) -> None:
        """Make sure that the plan that is kept, or else that is served, is what the manifest names."""
        file = self.folder / _PLAN
        if file.exists():
            kept = file.read_bytes()
            if digest_of(kept) == manifest.plan:
                return
            if self.held() is not None:
                raise ManifestRefused("its plan is not the plan of the rounds before")
            self._no_longer_believe(kept)
        plan = api.plan(self.federation)
        if digest_of(plan) != manifest.plan:
            raise ManifestRefused("its plan is not the plan that is served")
        write_durably(file, plan)

    def _no_longer_believe(self, plan: bytes) -> None:
        """Keep a plan as evidence that nobody signed for: people hear of it, and the next start asks anew.

        Raises:
            ManifestRefused: always; what was sent to join was made under that plan.
        """
        name = digest_of(plan).removeprefix("sha256:")[:16]
        write_durably(self.folder / _EVIDENCE / f"plan-{name}.json", plan)
        (self.folder / _PLAN).unlink()
        raise ManifestRefused(
            "its plan is not the plan that was served before, under which this silo has asked to join; that "
            f"one is kept in {self.folder / _EVIDENCE}, and the next start goes by the signed one"
        )

    def _contradiction(self, one: SignedDocument, other: SignedDocument, what: str) -> None:
        for document in (one, other):
            name = hash_of(document).removeprefix("sha256:")[:16]
            write_durably(self.folder / _EVIDENCE / f"{name}.json", json.dumps(document, indent=1).encode())
        raise ManifestRefused(f"{what}; both are kept in {self.folder / _EVIDENCE}")
