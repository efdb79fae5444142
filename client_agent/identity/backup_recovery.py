"""Accept a coordinator that was restored from a backup, after a person confirms the offered state.

Later state moves to `earlier/`. The latest trained adapter stays, as that of the round before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from client_agent.errors import CoordinatorRefused, ManifestRefused, NothingWasRestored, NotInTheBackup
from client_agent.identity.manifests import Manifests
from client_agent.identity.roster import ROSTER, Roster
from client_agent.storage.archive import keep_copy, move_aside
from client_agent.storage.base_delta import BaseDelta
from client_agent.storage.files import fsync_folder, write_durably
from client_agent.storage.round_folder import (
    BRIEF,
    CLOSED,
    FINAL_SCORES,
    FINAL_SCORES_SENT,
    FINAL_WEIGHTS,
    FOLD,
    MANIFEST,
    SKETCH,
    TRAINED,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from client_agent.transport.client import CoordinatorApi
from client_agent.transport.responses import NoOpenRound
from schemas.identity.documents import hash_of
from schemas.identity.keys import thumbprint
from schemas.messages.rounds import FinishedBrief, RoundBrief, RoundManifest, SignedDocument

_FINAL = (FINAL_WEIGHTS, FINAL_SCORES, FINAL_SCORES_SENT)
_CARRIED = "rounds-carried-over"
_NO_ROUND = 0  # the base delta of a lost round can be exported, and no served weights add to it
Pins = Mapping[str, str]
_REASON = "newer than the restored coordinator"


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A round manifest: the signed document and its parsed content."""

    document: SignedDocument
    manifest: RoundManifest

    def __str__(self) -> str:
        issued = self.manifest.issued_at.isoformat(timespec="seconds")
        return f"round {self.manifest.round}, issued {issued}, manifest {hash_of(self.document)}"


@dataclass(frozen=True, slots=True)
class Offer:
    """The last manifest that this silo accepted, beside the restored state of the coordinator.

    Attributes:
        offered: the last manifest for this client in the restored state, if any.
        open_round: the round that the coordinator now opens for this client, if any.
        changed_members: names of members whose keys differ from this silo's roster.
    """

    accepted: StoredManifest
    offered: StoredManifest | None
    open_round: int | None
    changed_members: list[str]

    def __str__(self) -> str:
        lines = [
            f"last accepted here:     {self.accepted}",
            f"the coordinator offers: {self.offered or 'no round'}",
        ]
        if self.offered is not None and self._is_predecessor(self.offered):
            lines.append("                        (the predecessor of the last accepted manifest)")
        if self.open_round is not None:
            lines.append(f"open now:               round {self.open_round}")
        if self.changed_members:
            lines.append(f"members with new keys:  {', '.join(self.changed_members)}")
        return "\n".join(lines)

    def _is_predecessor(self, offered: StoredManifest) -> bool:
        before = self.accepted.manifest.previous
        return before is not None and before.hash == hash_of(offered.document)


def compare_state(manifests: Manifests, pins: Pins, api: CoordinatorApi) -> Offer:
    """Compare the last accepted manifest with the coordinator's state, after it proves its key. Read-only.

    Raises:
        NothingWasRestored: the coordinator's state follows the accepted manifest, or none was accepted yet.
        NotInTheBackup: the coordinator does not know this client.
        CoordinatorNotTrusted: another coordinator answers.
        ManifestRefused: a manifest is not signed with the pinned key, or names another plan.
    """
    document = manifests.last_accepted()
    if document is None:
        raise NothingWasRestored(
            "this silo has joined no round yet, so that no state was lost; use `tessera agent run`"
        )
    accepted = StoredManifest(document, manifests.read(document))
    api.proved_hello(thumbprint(manifests.server_key))
    try:
        answer = api.current_round(manifests.federation)
        newest = _newest(manifests, api, accepted.manifest.round, answer)
    except CoordinatorRefused as refusal:
        if refusal.slug in ("signature-invalid", "key-revoked"):
            raise NotInTheBackup(refusal) from refusal
        raise
    offered = StoredManifest(newest, manifests.read(newest)) if newest is not None else None
    if offered is not None:
        _require_divergence(manifests, accepted, offered, api)
    return Offer(
        accepted,
        offered,
        answer.round if isinstance(answer, RoundBrief) else None,
        _roster(manifests, pins).changed_members(offered.manifest, api) if offered is not None else [],
    )


def accept(offer: Offer, manifests: Manifests, pins: Pins, api: CoordinatorApi) -> None:
    """Adopt the offered state. After a crash at any point, a second call completes it.

    The manifest is replaced last: until then the agent refuses rounds of the restored coordinator.

    Raises:
        RosterRefused: the plan requires pinned members, and one of the restored roster is not pinned.
    """
    home, offered = manifests.folder, offer.offered
    # Rounds first, the manifest last: until it is replaced, the agent refuses the restored coordinator, so
    # that a crash in between leads to no round.
    _carry_over(RoundFolders(home / "rounds"), manifests, before=offered.manifest.round if offered else 1)
    for name in (*_FINAL, ROSTER, MANIFEST) if offered is None else _FINAL:
        if (home / name).exists():
            move_aside(home / name, _REASON)
    if offered is None:
        return
    for name in (ROSTER, MANIFEST):
        if (home / name).exists():
            keep_copy(home / name)
    _roster(manifests, pins).follow(offered.manifest, api, from_start=True)
    write_durably(home / MANIFEST, json.dumps(offered.document).encode())


def _roster(manifests: Manifests, pins: Pins) -> Roster:
    return Roster(manifests.folder, manifests.plan.privacy.roster_policy, pins)


def _newest(
    manifests: Manifests,
    api: CoordinatorApi,
    last_accepted: int,
    answer: RoundBrief | FinishedBrief | NoOpenRound,
) -> SignedDocument | None:
    """Return the last manifest for this client that the coordinator stores, if any."""
    if isinstance(answer, FinishedBrief) and answer.manifest is not None:
        return answer.manifest
    latest = max(last_accepted, answer.round) if isinstance(answer, RoundBrief) else last_accepted
    # Backwards, since rounds in which this client took no part have no manifest for it.
    for round_number in range(latest, 0, -1):
        try:
            return api.manifest(manifests.federation, round_number)
        except CoordinatorRefused as refusal:
            if refusal.slug != "not-found":
                raise
    return None


def _require_divergence(
    manifests: Manifests, accepted: StoredManifest, offered: StoredManifest, api: CoordinatorApi
) -> None:
    """Raise unless the offered manifest has the same plan and does not follow the accepted one."""
    if offered.manifest.plan != accepted.manifest.plan:
        raise ManifestRefused("it names another plan than earlier rounds, which no backup explains")
    try:
        if offered.document != accepted.document:
            # A chain that continues the accepted manifest means that nothing was lost.
            manifests.follow(offered.document, offered.manifest, accepted.document, api)
    except ManifestRefused:
        return
    raise NothingWasRestored(
        f"nothing was lost: the coordinator still has this silo's last round ({accepted}); "
        "continue with `tessera agent run`"
    )


def _carry_over(rounds: RoundFolders, manifests: Manifests, *, before: int) -> None:
    """Move all rounds aside; keep the latest trained adapter and sketch, numbered below round `before`."""
    # A copy is complete before the original moves; the next call continues at whichever folder is there.
    rounds_folder, carried = manifests.folder / "rounds", manifests.folder / _CARRIED
    if rounds_folder.exists():
        shutil.rmtree(carried, ignore_errors=True)
        carried.mkdir()
        trained = next((folder for folder in rounds.newest_first() if folder.has(TRAINED)), None)
        # A client that joined and has not trained yet has spent privacy budget on its sketch; keep it too.
        signed = next((folder for folder in rounds.newest_first() if folder.has(SKETCH)), None)
        last = trained or signed
        if last is not None:
            _copy(trained, signed, RoundFolders(carried).open(min(last.number, before - 1)), last.number)
        move_aside(rounds_folder, _REASON)
    if carried.exists():
        carried.rename(rounds_folder)
        fsync_folder(manifests.folder)


def _copy(
    trained: RoundFolder | None, signed: RoundFolder | None, to: RoundFolder, round_number: int
) -> None:
    if trained is not None:
        for name in (BRIEF, WEIGHTS, TRAINED):
            to.write(name, trained.read(name))
        if trained.has(FOLD):
            added = BaseDelta.from_bytes(trained.read(FOLD)).added
            # Increments of the restored coordinator must not be added to the delta of a lost round.
            to.write(FOLD, BaseDelta(_NO_ROUND, added).to_bytes())
    if signed is not None:
        to.write(SKETCH, signed.read(SKETCH))
    # Closed, so that no step of it is taken again.
    to.write(CLOSED, json.dumps({"reason": "carried-over", "round": round_number}).encode())
