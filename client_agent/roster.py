"""Decide whom the coordinator may count among the members, where the plan has agents check it.

`pinned`: only names and keys that people in the silo wrote down. `tofu`: whoever it names first under a name,
and after that nobody else under it. A key changes only if the one before endorsed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from client_agent.coordinator_api import CoordinatorApi
from client_agent.errors import RosterRefused, SettingsUnusable
from client_agent.round_folder import write_durably
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import KeyUnusable, public_key
from schemas.messages.enrolment import RosterEntry, rotation_statement
from schemas.messages.federations import RosterPolicy
from schemas.messages.rounds import RoundManifest, SignedDocument
from schemas.messages.strict import Strict

_ROSTER = "roster.json"


class _Member(Strict):
    """A client that was enrolled once, and the key it has now: null when it has none or was revoked."""

    name: str
    public_key: str | None


class _Known(Strict):
    """The roster as far as it was followed: the last link's version and hash, and all clients by id."""

    version: int = 0
    hash: str | None = None
    members: dict[str, _Member] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Roster:
    """A federation's roster as this agent believes it; `pins` are public keys by client name."""

    folder: Path
    policy: RosterPolicy
    pins: Mapping[str, str]

    def follow(self, manifest: RoundManifest, api: CoordinatorApi) -> None:
        """Go on to the version that a manifest names, link by link.

        Raises:
            RosterRefused: a link is missing, or names somebody whom the policy does not let in.
        """
        if self.pins and self.policy != "pinned":
            raise RosterRefused(
                f"this silo pins members, and privacy.roster_policy is {self.policy!r}, not 'pinned'; "
                "remove `roster` from silo.toml only if you believe the coordinator"
            )
        if self.policy == "server":
            return
        file = self.folder / _ROSTER
        known = _Known.model_validate_json(file.read_bytes()) if file.exists() else _Known()
        while known.version < manifest.roster_version:
            links = api.roster(manifest.federation, after=known.version)
            if not links:
                raise RosterRefused("it is shorter than the round's manifest says")
            for document in links[: manifest.roster_version - known.version]:
                known = self._with(known, document, manifest.federation)
        if known.version == manifest.roster_version and known.hash != manifest.roster_hash:
            raise RosterRefused("it is not the roster that the round's manifest names")
        write_durably(file, known.model_dump_json(indent=1).encode())

    def _with(self, known: _Known, document: SignedDocument, federation: str) -> _Known:
        try:
            link = RosterEntry.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise RosterRefused("a link of it cannot be read") from error
        if (link.federation, link.version, link.previous) != (federation, known.version + 1, known.hash):
            raise RosterRefused(f"link {known.version + 1} does not follow the one before")
        match link.event:
            case "enrolled":
                self._check_newcomer(known, link)
            case "rotated":
                _check_endorsement(known, link)
            case "revoked":
                pass
        member = _Member(name=link.name, public_key=link.public_key if link.event != "revoked" else None)
        members = known.members | {link.client: member}
        return _Known(version=link.version, hash=hash_of(document), members=members)

    def _check_newcomer(self, known: _Known, link: RosterEntry) -> None:
        if self.policy == "pinned" and (
            link.public_key is None or self.pins.get(link.name) != link.public_key
        ):
            raise RosterRefused(f"{link.name!r} with key {link.public_key} is not pinned in this silo")
        if any(member.name == link.name for member in known.members.values()):
            raise RosterRefused(f"a second client is called {link.name!r}")


def _check_endorsement(known: _Known, link: RosterEntry) -> None:
    before = known.members.get(link.client)
    if before is None or before.public_key is None or link.public_key is None or before.name != link.name:
        raise RosterRefused(f"{link.name!r} replaced a key that it did not have")
    said = rotation_statement(
        federation=link.federation,
        client=link.client,
        old_key=before.public_key,
        public_key=link.public_key,
    )
    try:
        key = public_key(before.public_key)
    except KeyUnusable as error:
        raise RosterRefused(f"the key of {link.name!r} is not usable") from error
    if not is_signed("tessera-rotation-v1", said, link.endorsement, key):
        raise RosterRefused(f"the new key of {link.name!r} is not endorsed by the one before")


def read_pins(file: Path | None) -> dict[str, str]:
    """Read the members that people pinned: a JSON object, client names to public keys.

    Raises:
        SettingsUnusable: the file is missing or something else.
    """
    if file is None:
        return {}
    try:
        pins = json.loads(file.read_text("utf-8"))
        if isinstance(pins, dict) and all(isinstance(key, str) for key in pins.values()):
            return {name: key for name, key in pins.items() if public_key(key)}
    except (OSError, ValueError) as error:
        raise SettingsUnusable(f"roster: {file} is not usable: {error}") from error
    raise SettingsUnusable(f"roster: {file} is not a JSON object of client names and public keys")
