"""Decide whom the coordinator may count among the members, where the plan has agents check it.

`pinned`: only names and keys that people in the silo wrote down; a pin holds for the keys that were endorsed
after it, and who was revoked needs none. `tofu`: whoever it names first under a name, and after that nobody
else under it. A key changes only if the one before endorsed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from client_agent.errors import RosterRefused, SettingsUnusable
from client_agent.storage.files import write_durably
from client_agent.transport.client import CoordinatorApi
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import KeyUnusable, public_key
from schemas.messages.base import Strict
from schemas.messages.enrolment import RosterEntry, rotation_statement
from schemas.messages.federations import RosterPolicy
from schemas.messages.rounds import RoundManifest, SignedDocument

ROSTER = "roster.json"


class _Member(Strict):
    """A client that was enrolled once, and its keys, each endorsed by the one before: none if it is a bearer.

    The last one is the one it has now.
    """

    name: str
    keys: list[str]
    revoked: bool = False


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

    def follow(self, manifest: RoundManifest, api: CoordinatorApi, *, anew: bool = False) -> None:
        """Go on to the version that a manifest names, link by link; `anew` from the roster's beginning.

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
        begin = _Known() if anew else _read(self.folder / ROSTER)
        known = self._on_from(begin, manifest, api)
        if self.policy == "pinned":
            self._check_pins(known)
        write_durably(self.folder / ROSTER, known.model_dump_json(indent=1).encode())

    def strangers(self, manifest: RoundManifest, api: CoordinatorApi) -> list[str]:
        """Name who has other keys, when the roster is read from its beginning, than are known here."""
        if self.policy == "server":
            return []
        known = {one.name: {*one.keys} for one in _read(self.folder / ROSTER).members.values()}
        members = self._on_from(_Known(), manifest, api).members.values()
        found = {one.name: {*one.keys} for one in members if one.name in known}
        return sorted(n for n, keys in found.items() if keys != known[n] and keys.isdisjoint(known[n]))

    def _on_from(self, known: _Known, manifest: RoundManifest, api: CoordinatorApi) -> _Known:
        while known.version < manifest.roster_version:
            links = api.roster(manifest.federation, after=known.version)
            if not links:
                raise RosterRefused("it is shorter than the round's manifest says")
            for document in links[: manifest.roster_version - known.version]:
                known = self._with(known, document, manifest.federation)
        if known.version == manifest.roster_version and known.hash != manifest.roster_hash:
            raise RosterRefused("it is not the roster that the round's manifest names")
        return known

    def _with(self, known: _Known, document: SignedDocument, federation: str) -> _Known:
        try:
            link = RosterEntry.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise RosterRefused("a link of it cannot be read") from error
        if (link.federation, link.version, link.previous) != (federation, known.version + 1, known.hash):
            raise RosterRefused(f"link {known.version + 1} does not follow the one before")
        match link.event:
            case "enrolled":
                member = _newcomer(known, link)
            case "rotated":
                member = _renewed(known, link)
            case "revoked":
                member = _gone(known, link)
        members = known.members | {link.client: member}
        return _Known(version=link.version, hash=hash_of(document), members=members)

    def _check_pins(self, known: _Known) -> None:
        """Check that every member is pinned, by the key it has or by one whose endorsements lead to it."""
        for member in known.members.values():
            if not member.revoked and self.pins.get(member.name) not in member.keys:
                key = member.keys[-1] if member.keys else "none"
                raise RosterRefused(f"{member.name!r} with key {key} is not pinned in this silo")


def _read(file: Path) -> _Known:
    """Read how far the roster was followed; what another version of the agent wrote is followed anew."""
    try:
        return _Known.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return _Known()


def _newcomer(known: _Known, link: RosterEntry) -> _Member:
    if any(member.name == link.name for member in known.members.values()):
        raise RosterRefused(f"a second client is called {link.name!r}")
    if link.client in known.members:
        raise RosterRefused(f"{link.name!r} was somebody else before")
    return _Member(name=link.name, keys=[link.public_key] if link.public_key is not None else [])


def _gone(known: _Known, link: RosterEntry) -> _Member:
    before = known.members.get(link.client, _Member(name=link.name, keys=[]))
    if before.name != link.name:
        raise RosterRefused(f"{link.name!r} was somebody else before")
    return before.model_copy(update={"revoked": True})


def _renewed(known: _Known, link: RosterEntry) -> _Member:
    before = known.members.get(link.client)
    if before is None or before.revoked or not before.keys or before.name != link.name:
        raise RosterRefused(f"{link.name!r} replaced a key that it did not have")
    if link.public_key is None:
        raise RosterRefused(f"{link.name!r} replaced a key that it did not have")
    said = rotation_statement(
        federation=link.federation,
        client=link.client,
        old_key=before.keys[-1],
        public_key=link.public_key,
    )
    try:
        key = public_key(before.keys[-1])
    except KeyUnusable as error:
        raise RosterRefused(f"the key of {link.name!r} is not usable") from error
    if not is_signed("tessera-rotation-v1", said, link.endorsement, key):
        raise RosterRefused(f"the new key of {link.name!r} is not endorsed by the one before")
    return _Member(name=link.name, keys=[*before.keys, link.public_key])


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
