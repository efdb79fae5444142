"""Verify the coordinator's signed round manifests: each follows the one before.

Two contradictory manifests are stored as evidence.
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
from client_agent.storage.round_folder import MANIFEST, PLAN
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import public_key
from schemas.messages.faults import complaints
from schemas.messages.federations import FederationPlan
from schemas.messages.rounds import RoundBrief, RoundManifest, SignedDocument
from schemas.wire.digests import digest_of

_EVIDENCE = "evidence"
_GRACE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Manifests:
    """The round manifests that one coordinator signed for one client, below a folder.

    Attributes:
        server_key: the coordinator's public key, as proved at enrolment.
        clock: seconds since 1970, on the coordinator's clock.
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
        round_number: int,
        weights: str,
        final: bool = False,
    ) -> RoundManifest:
        """Verify a round's manifest against its weights and all earlier manifests, and store it.

        The `final` manifest may have a higher round number, after abandoned rounds.

        Raises:
            ManifestRefused: it is unsigned, for another client, older, incomplete, or contradicts another.
            ManifestExpired: its deadline has passed.
        """
        manifest = self.read(document)
        expected = max(round_number, manifest.round) if final else round_number
        if (manifest.round, manifest.weights) != (expected, weights):
            raise ManifestRefused(
                f"it is not of round {round_number} and of the weights served for that round"
            )
        accepted = self.last_accepted()
        # The same manifest again is a repeated join, as after a crash.
        if accepted is not None and document != accepted:
            self.follow(document or {}, manifest, accepted, api)
        self._require_signed_plan(manifest, api)
        # A manifest that is replayed after the end of its round must not start work again.
        if manifest.deadline is not None and self.clock() > manifest.deadline.timestamp() + _GRACE_SECONDS:
            raise ManifestExpired(round_number)
        write_durably(self.folder / MANIFEST, json.dumps(document).encode())
        return manifest

    @property
    def plan(self) -> FederationPlan:
        """The federation's plan as fetched; after the first accepted manifest, the plan that it names."""
        return FederationPlan.model_validate_json(self.stored_plan, extra="ignore")

    @property
    def stored_plan(self) -> bytes:
        """The stored plan as it was served."""
        return (self.folder / PLAN).read_bytes()

    def fetch_plan(self, api: CoordinatorApi) -> None:
        """Store the served plan unless one is stored: each manifest then has to name this plan.

        Raises:
            AnswerUnreadable: the answer is not a plan.
        """
        if (self.folder / PLAN).exists():
            return
        plan = api.plan(self.federation)
        try:
            FederationPlan.model_validate_json(plan, extra="ignore")
        except ValidationError as error:
            raise AnswerUnreadable("the federation's plan", complaints(error, FederationPlan)) from error
        write_durably(self.folder / PLAN, plan)

    def hold_to_plan(self, brief: RoundBrief) -> None:
        """Raise ManifestRefused if a round brief differs from the plan."""
        plan = self.plan
        # The brief is not signed, and steps read their settings from it.
        for part in ("strategy", "adapter", "training", "signature", "alignment", "wire", "scores"):
            if getattr(brief, part) != getattr(plan, part):
                raise ManifestRefused(f"round {brief.round} has another {part} than the federation's plan")
        if brief.total_rounds != plan.rounds.total:
            raise ManifestRefused(f"round {brief.round} has another total_rounds than the federation's plan")

    def hold_to_order(self, round_number: int) -> None:
        """Raise ManifestRefused for a round before one that this client has joined."""
        accepted = self.last_accepted()
        if accepted is not None and round_number < (last := self.read(accepted).round):
            raise ManifestRefused(f"it opens round {round_number}, and round {last} was joined before")

    def has_joined(self, round_number: int) -> bool:
        accepted = self.last_accepted()
        return accepted is not None and self.read(accepted).round >= round_number

    def read(self, document: SignedDocument | None) -> RoundManifest:
        """Parse and verify a manifest for this client, of any round.

        Raises:
            ManifestRefused: it is malformed, not signed with the coordinator's key, or for another client.
        """
        try:
            # The parsed copy is for reading; the signature is verified over the document as served.
            manifest = RoundManifest.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise ManifestRefused("it is not a manifest") from error
        if not is_signed("tessera-round-v1", document or {}, manifest.signature, public_key(self.server_key)):
            raise ManifestRefused("it is not signed with the coordinator's key")
        if (manifest.federation, manifest.client) != (self.federation, self.client):
            raise ManifestRefused("it is for another federation or another client")
        return manifest

    def last_accepted(self) -> SignedDocument | None:
        file = self.folder / MANIFEST
        document: SignedDocument | None = json.loads(file.read_bytes()) if file.exists() else None
        return document

    def follow(
        self, document: SignedDocument, manifest: RoundManifest, accepted: SignedDocument, api: CoordinatorApi
    ) -> None:
        """Verify the chain from a manifest back to the accepted one; fetch the manifests in between.

        Raises:
            ManifestRefused: the chain breaks; the two contradictory manifests are stored as evidence.
        """
        last = self.read(accepted)
        if manifest.round == last.round:
            self._refuse_both(document, accepted, f"there are two manifests of round {last.round}")
        if manifest.round < last.round:
            self._refuse_both(document, accepted, f"round {last.round} was joined before")
        if manifest.plan != last.plan:
            self._refuse_both(document, accepted, "the plan was changed")
        self._require_roster_order(document, manifest, accepted, last)
        current = manifest
        # Rounds without this client, or an abandoned one, may lie between both.
        while current.previous is not None and current.previous.round > last.round:
            missing = api.manifest(self.federation, current.previous.round)
            if hash_of(missing) != current.previous.hash:
                self._refuse_both(
                    document, missing, f"there are two manifests of round {current.previous.round}"
                )
            current = self.read(missing)
        if current.previous is None or (current.previous.round, current.previous.hash) != (
            last.round,
            hash_of(accepted),
        ):
            self._refuse_both(document, accepted, f"it does not follow the manifest of round {last.round}")

    def _require_roster_order(
        self, document: SignedDocument, manifest: RoundManifest, accepted: SignedDocument, last: RoundManifest
    ) -> None:
        if manifest.roster_version < last.roster_version:
            self._refuse_both(document, accepted, "the roster went back")
        if manifest.roster_version == last.roster_version and manifest.roster_hash != last.roster_hash:
            self._refuse_both(document, accepted, f"there are two rosters of version {last.roster_version}")

    def _require_signed_plan(self, manifest: RoundManifest, api: CoordinatorApi) -> None:
        """Raise ManifestRefused unless the stored or served plan has the digest in the manifest."""
        file = self.folder / PLAN
        if file.exists():
            stored = file.read_bytes()
            if digest_of(stored) == manifest.plan:
                return
            # After the first manifest the plan is signed and must not change. Before, it was only served.
            if self.last_accepted() is not None:
                raise ManifestRefused("its plan is not the plan of earlier rounds")
            self._reject_unsigned_plan(stored)
        plan = api.plan(self.federation)
        if digest_of(plan) != manifest.plan:
            raise ManifestRefused("its plan is not the plan that is served")
        write_durably(file, plan)

    def _reject_unsigned_plan(self, plan: bytes) -> None:
        """Move an unsigned plan to the evidence; the next start fetches the plan again.

        Raises:
            ManifestRefused: always, because the join request was made under that plan.
        """
        name = digest_of(plan).removeprefix("sha256:")[:16]
        write_durably(self.folder / _EVIDENCE / f"plan-{name}.json", plan)
        (self.folder / PLAN).unlink()
        raise ManifestRefused(
            "its plan is not the plan that was served before this silo's join; the earlier plan is stored in "
            f"{self.folder / _EVIDENCE}, and the next start uses the signed plan"
        )

    def _refuse_both(self, document_a: SignedDocument, document_b: SignedDocument, reason: str) -> None:
        for document in (document_a, document_b):
            name = hash_of(document).removeprefix("sha256:")[:16]
            write_durably(self.folder / _EVIDENCE / f"{name}.json", json.dumps(document, indent=1).encode())
        raise ManifestRefused(f"{reason}; both manifests are stored in {self.folder / _EVIDENCE}")
