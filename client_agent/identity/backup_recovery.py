"""Take up a coordinator that was restored from a backup: what this silo has seen gives way to what it offers.

Whether a backup was restored only people know: here is what they are shown, and what is done if they agree.
What was seen later is kept in `earlier/`. The adapter that was trained last goes on, as that of the
round before.
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
from client_agent.storage.base_delta import Fold
from client_agent.storage.files import fsync_folder, write_durably
from client_agent.storage.round_folder import (
    BRIEF,
    CLOSED,
    FINAL_WEIGHTS,
    FOLD,
    MANIFEST,
    SIGNATURE,
    TRAINED,
    WEIGHTS,
    RoundFolder,
    RoundFolders,
)
from client_agent.transport.client import CoordinatorApi, NothingYet
from schemas.identity.documents import hash_of
from schemas.identity.keys import thumbprint
from schemas.messages.rounds import FinishedBrief, RoundBrief, RoundManifest, SignedDocument

_CARRIED = "rounds-carried-over"
_OF_NO_ROUND = 0  # what was folded in a lost round can be exported, and is nothing that weights add to
Pins = Mapping[str, str]
_LATER = "of the coordinator's state before it was restored"


@dataclass(frozen=True, slots=True)
class Told:
    """A manifest as it was signed, and read."""

    document: SignedDocument
    manifest: RoundManifest

    def __str__(self) -> str:
        issued = self.manifest.issued_at.isoformat(timespec="seconds")
        return f"round {self.manifest.round}, told {issued}, manifest {hash_of(self.document)}"


@dataclass(frozen=True, slots=True)
class Offer:
    """What this silo has seen last, and the last thing that the coordinator knows it has told us.

    Attributes:
        offered: None where it has told us of no round at all.
        round_now: the round that it asks us to take part in, if there is one.
        strangers: members that have other keys than the roster that this silo has followed says.
    """

    seen: Told
    offered: Told | None
    round_now: int | None
    strangers: list[str]

    def __str__(self) -> str:
        lines = [
            f"this silo has seen:     {self.seen}",
            f"the coordinator offers: {self.offered or 'no round at all'}",
        ]
        if self.offered is not None and self._is_the_one_before(self.offered):
            lines.append("                        the very manifest that ours names as the one before it")
        if self.round_now is not None:
            lines.append(f"it now asks for:        round {self.round_now}")
        if self.strangers:
            lines.append(f"under other keys now:   {', '.join(self.strangers)}")
        return "\n".join(lines)

    def _is_the_one_before(self, offered: Told) -> bool:
        before = self.seen.manifest.previous
        return before is not None and before.hash == hash_of(offered.document)


def look(held: Manifests, pins: Pins, api: CoordinatorApi) -> Offer:
    """Compare what was seen with what the coordinator, after proving its key, knows now. Changes nothing.

    Raises:
        NothingWasRestored: what it knows follows what was seen, or nothing was seen yet.
        NotInTheBackup: it does not know this client.
        CoordinatorNotTrusted: another coordinator answers.
        ManifestRefused: it offers what the pinned key has not signed, or a federation of another plan.
    """
    document = held.held()
    if document is None:
        raise NothingWasRestored("this silo has joined no round yet: there is nothing to go back behind")
    seen = Told(document, held.read(document))
    api.proved_hello(thumbprint(held.server_key))
    try:
        answer = api.current_round(held.federation)
        newest = _newest(held, api, seen.manifest.round, answer)
    except CoordinatorRefused as refusal:
        if refusal.slug in ("signature-invalid", "key-revoked"):
            raise NotInTheBackup(refusal) from refusal
        raise
    offered = Told(newest, held.read(newest)) if newest is not None else None
    if offered is not None:
        _require_another(held, seen, offered, api)
    return Offer(
        seen,
        offered,
        answer.round if isinstance(answer, RoundBrief) else None,
        _roster(held, pins).strangers(offered.manifest, api) if offered is not None else [],
    )


def accept(offer: Offer, held: Manifests, pins: Pins, api: CoordinatorApi) -> None:
    """Go on from what is offered. Killed anywhere, the same call again finishes what was begun.

    The manifest is exchanged last: until then no round of the restored coordinator is taken part in.

    Raises:
        RosterRefused: the plan has members pinned, and one of the restored roster's is not.
    """
    home, offered = held.folder, offer.offered
    _carry_over(RoundFolders(home / "rounds"), held, before=offered.manifest.round if offered else 1)
    for name in (FINAL_WEIGHTS, ROSTER, MANIFEST) if offered is None else (FINAL_WEIGHTS,):
        if (home / name).exists():
            move_aside(home / name, _LATER)
    if offered is None:
        return
    for name in (ROSTER, MANIFEST):
        if (home / name).exists():
            keep_copy(home / name)
    _roster(held, pins).follow(offered.manifest, api, anew=True)
    write_durably(home / MANIFEST, json.dumps(offered.document).encode())


def _roster(held: Manifests, pins: Pins) -> Roster:
    return Roster(held.folder, held.plan.privacy.roster_policy, pins)


def _newest(
    held: Manifests, api: CoordinatorApi, seen: int, answer: RoundBrief | FinishedBrief | NothingYet
) -> SignedDocument | None:
    """Find the last manifest that the coordinator knows of: it keeps all of this client's."""
    if isinstance(answer, FinishedBrief) and answer.manifest is not None:
        return answer.manifest
    latest = max(seen, answer.round) if isinstance(answer, RoundBrief) else seen
    for number in range(latest, 0, -1):
        try:
            return api.manifest(held.federation, number)
        except CoordinatorRefused as refusal:
            if refusal.slug != "not-found":
                raise
    return None


def _require_another(held: Manifests, seen: Told, offered: Told, api: CoordinatorApi) -> None:
    """Make sure that what is offered does not simply follow, and is of the same federation's plan."""
    if offered.manifest.plan != seen.manifest.plan:
        raise ManifestRefused("it is of another plan than the rounds before, which no backup explains")
    try:
        if offered.document != seen.document:
            held.follow(offered.document, offered.manifest, seen.document, api)
    except ManifestRefused:
        return
    raise NothingWasRestored(
        f"nothing was lost: the coordinator knows all that this silo has seen ({seen}); "
        "`tessera agent run` goes on"
    )


def _carry_over(rounds: RoundFolders, held: Manifests, *, before: int) -> None:
    """Set all rounds aside but what the next one builds on, under a number that comes before it."""
    there, carried = held.folder / "rounds", held.folder / _CARRIED
    if there.exists():
        shutil.rmtree(carried, ignore_errors=True)
        carried.mkdir()
        trained = next((folder for folder in rounds.newest_first() if folder.has(TRAINED)), None)
        # Who joined and has not trained yet has paid for a signature all the same, and may have no other.
        signed = next((folder for folder in rounds.newest_first() if folder.has(SIGNATURE)), None)
        last = trained or signed
        if last is not None:
            _copy(trained, signed, RoundFolders(carried).open(min(last.number, before - 1)), last.number)
        move_aside(there, _LATER)
    if carried.exists():
        carried.rename(there)
        fsync_folder(held.folder)


def _copy(trained: RoundFolder | None, signed: RoundFolder | None, to: RoundFolder, number: int) -> None:
    if trained is not None:
        for name in (BRIEF, WEIGHTS, TRAINED):
            to.write(name, trained.read(name))
        if trained.has(FOLD):
            added = Fold.from_bytes(trained.read(FOLD)).added
            to.write(FOLD, Fold(_OF_NO_ROUND, added).to_bytes())
    if signed is not None:
        to.write(SIGNATURE, signed.read(SIGNATURE))
    to.write(CLOSED, json.dumps({"reason": "carried-over", "round": number}).encode())
