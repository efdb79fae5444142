"""Verify the federation's roster of members under the plan's policy: `pinned`, `tofu` or `server`."""

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
from schemas.names.spelling import normal_name
from schemas.user_files import read_text

ROSTER = "roster.json"


class _Member(Strict):
    """A client and its keys, newest last, each endorsed by the one before; empty for a bearer client."""

    name: str
    keys: list[str]
    revoked: bool = False


class _RosterState(Strict):
    """The verified part of the roster: the last link's version and hash, and all clients by id."""

    version: int = 0
    hash: str | None = None
    members: dict[str, _Member] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Target:
    """The version and hash of a roster that the coordinator signed."""

    federation: str
    version: int
    hash: str | None

    @classmethod
    def of(cls, manifest: RoundManifest) -> _Target:
        return cls(manifest.federation, manifest.roster_version, manifest.roster_hash)


@dataclass(frozen=True, slots=True)
class Roster:
    """A federation's roster as this agent verified it.

    `pinned` accepts only the client names and keys in `pins`, and the keys that a pinned key endorsed;
    revoked members need no pin. `tofu` accepts the first client of a name and no second one. A key changes
    only with the endorsement of the key before.
    """

    folder: Path
    policy: RosterPolicy
    pins: Mapping[str, str]

    def follow(self, manifest: RoundManifest, api: CoordinatorApi, *, from_start: bool = False) -> None:
        """Verify the roster link by link up to the version in a manifest; `from_start`: from its first link.

        Raises:
            RosterRefused: a link is missing, or has a member that the policy does not accept.
        """
        if self.pins and self.policy != "pinned":
            raise RosterRefused(
                f"this silo pins members, and privacy.roster_policy is {self.policy!r}, not 'pinned'; "
                "remove `roster` from silo.toml only if you trust the coordinator's roster"
            )
        if self.policy == "server":
            if from_start:  # members of secure sums have stored it under this policy too
                (self.folder / ROSTER).unlink(missing_ok=True)
            return
        start = _RosterState() if from_start else _read(self.folder / ROSTER)
        self._store(self._follow_links(start, _Target.of(manifest), api))

    def keys_at(
        self, federation_id: str, version: int, link_hash: str, api: CoordinatorApi
    ) -> dict[str, str]:
        """Return the keys of all members at a version, verified link by link under any policy.

        Members of a secure sum need each other's keys even where the policy trusts the coordinator's roster.

        Raises:
            RosterRefused: a link is missing, or has a member that the policy does not accept.
        """
        stored = _read(self.folder / ROSTER)
        if version < stored.version:
            raise RosterRefused(f"it went back from version {stored.version} to {version}")
        state = self._follow_links(stored, _Target(federation_id, version, link_hash), api)
        self._store(state)
        return {
            client: member.keys[-1]
            for client, member in state.members.items()
            # A revoked member takes no part in sums, and bearer clients have no key.
            if member.keys and not member.revoked
        }

    def _store(self, state: _RosterState) -> None:
        if self.policy == "pinned":
            self._check_pins(state)
        write_durably(self.folder / ROSTER, state.model_dump_json(indent=1).encode())

    def changed_members(self, manifest: RoundManifest, api: CoordinatorApi) -> list[str]:
        """Return the names of members whose keys in the full roster are disjoint from those stored here."""
        if self.policy == "server":
            return []
        trusted_keys = {
            member.name: {*member.keys} for member in _read(self.folder / ROSTER).members.values()
        }
        members = self._follow_links(_RosterState(), _Target.of(manifest), api).members.values()
        current_keys = {member.name: {*member.keys} for member in members if member.name in trusted_keys}
        return sorted(
            n
            for n, keys in current_keys.items()
            if keys != trusted_keys[n] and keys.isdisjoint(trusted_keys[n])
        )

    def _follow_links(self, state: _RosterState, target: _Target, api: CoordinatorApi) -> _RosterState:
        while state.version < target.version:
            links = api.roster(target.federation, after=state.version)
            if not links:
                raise RosterRefused("it is shorter than the version that the coordinator signed")
            for document in links[: target.version - state.version]:
                state = self._apply(state, document, target.federation)
        if state.version == target.version and state.hash != target.hash:
            raise RosterRefused("it is not the roster that the coordinator signed")
        return state

    def _apply(self, state: _RosterState, document: SignedDocument, federation_id: str) -> _RosterState:
        try:
            link = RosterEntry.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise RosterRefused("a link of it cannot be read") from error
        # Each link names the hash of the one before: no link can be replaced or left out.
        if (link.federation, link.version, link.previous) != (federation_id, state.version + 1, state.hash):
            raise RosterRefused(f"link {state.version + 1} does not follow the one before")
        match link.event:
            case "enrolled":
                member = _enrolled(state, link)
            case "rotated":
                member = _rotated(state, link)
            case "revoked":
                member = _revoked(state, link)
        members = state.members | {link.client: member}
        return _RosterState(version=link.version, hash=hash_of(document), members=members)

    def _check_pins(self, state: _RosterState) -> None:
        """Raise RosterRefused unless every member is pinned by its key, or by an earlier one."""
        for member in state.members.values():
            # An earlier key suffices, because each later one is endorsed by the one before.
            if not member.revoked and self.pins.get(normal_name(member.name)) not in member.keys:
                key = member.keys[-1] if member.keys else "none"
                raise RosterRefused(f"{member.name!r} with key {key} is not pinned in this silo")


def _read(file: Path) -> _RosterState:
    """Read the verified roster; return an empty one if the file is missing.

    Raises:
        SettingsUnusable: the file is damaged. An empty roster would forget the keys that this silo trusts.
    """
    try:
        return _RosterState.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return _RosterState()
    except ValidationError as error:
        raise SettingsUnusable(
            f"{file} is damaged; restore it from a backup, or delete it to trust the present roster anew"
        ) from error


def _enrolled(state: _RosterState, link: RosterEntry) -> _Member:
    # Trust on first use: a second client of a name could impersonate the first.
    if any(member.name == link.name for member in state.members.values()):
        raise RosterRefused(f"a second client has the name {link.name!r}")
    if link.client in state.members:
        raise RosterRefused(f"client {link.client} changed its name to {link.name!r}")
    return _Member(name=link.name, keys=[link.public_key] if link.public_key is not None else [])


def _revoked(state: _RosterState, link: RosterEntry) -> _Member:
    before = state.members.get(link.client, _Member(name=link.name, keys=[]))
    if before.name != link.name:
        raise RosterRefused(f"client {link.client} changed its name to {link.name!r}")
    return before.model_copy(update={"revoked": True})


def _rotated(state: _RosterState, link: RosterEntry) -> _Member:
    before = state.members.get(link.client)
    if before is None or before.revoked or not before.keys or before.name != link.name:
        raise RosterRefused(f"{link.name!r} replaced a key that it did not have")
    if link.public_key is None:
        raise RosterRefused(f"{link.name!r} replaced a key that it did not have")
    statement = rotation_statement(
        federation_id=link.federation,
        client_id=link.client,
        old_key=before.keys[-1],
        public_key=link.public_key,
    )
    try:
        key = public_key(before.keys[-1])
    except KeyUnusable as error:
        raise RosterRefused(f"the key of {link.name!r} is not usable") from error
    if not is_signed("tessera-rotation-v1", statement, link.endorsement, key):
        raise RosterRefused(f"the new key of {link.name!r} is not endorsed by the one before")
    return _Member(name=link.name, keys=[*before.keys, link.public_key])


def read_pins(file: Path | None) -> dict[str, str]:
    """Read the pinned members from a JSON object: client names, in their normal form, to public keys.

    Raises:
        SettingsUnusable: the file is missing or malformed.
    """
    if file is None:
        return {}
    try:
        pins = json.loads(read_text(file))
        if isinstance(pins, dict) and all(isinstance(key, str) for key in pins.values()):
            normal = {normal_name(name): key for name, key in pins.items() if public_key(key)}
            if len(normal) < len(pins):
                raise ValueError("two of its names are spellings of one")
            return normal
    except (OSError, ValueError) as error:
        raise SettingsUnusable(
            f"roster: {file} is unusable ({error}); write a JSON object of client names and public keys"
        ) from error
    raise SettingsUnusable(
        f"roster: {file} has another form; write a JSON object of client names and public keys"
    )
