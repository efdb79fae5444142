"""Verification of the member roster, against a real coordinator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.errors import RosterRefused, SettingsUnusable
from client_agent.identity.key_rotation import replace_key
from client_agent.identity.manifests import Manifests
from client_agent.identity.membership import enrol, read_key
from client_agent.identity.roster import Roster, read_pins
from client_agent.transport.client import CoordinatorApi
from schemas.identity.keys import name_of
from schemas.messages.enrolment import Profile
from schemas.messages.rounds import RoundManifest
from tests.scene.coordinator import PROFILE, Served, Silo
from tests.scene.key_rotation import rotation
from tests.scene.rounds import PLAN

Change = Callable[[list[dict[str, Any]]], object]
AGENT = Profile.model_validate(PROFILE)


class TwoMembers:
    """A federation of two members; one of them verifies the roster."""

    def __init__(self, served: Served, folder: Path, policy: str, opened: ExitStack) -> None:
        self.served, self.folder, self._opened = served, folder, opened
        self.federation_id = served.federation(**PLAN, privacy={"roster_policy": policy})
        self.second = served.enrol(self.federation_id, "other")
        token = served.enrolment_token(self.federation_id, "me")
        self.member = enrol(self.connect(None), folder, token=token, name="me", profile=AGENT)
        served.start_federation(self.federation_id)

    def connect(self, key: Ed25519PrivateKey | None, transport: Any = None) -> CoordinatorApi:
        connection = CoordinatorApi(self.served.url, key=key, deadline_seconds=0, transport=transport)
        return self._opened.enter_context(connection)

    def manifest(self) -> RoundManifest:
        api = self.connect(read_key(self.folder))
        joined = api.join(self.federation_id, 1, None)
        manifests = Manifests(self.folder, self.federation_id, self.member.client_id, self.member.server_key)
        return manifests.accept(joined.manifest, api, round_number=1, weights=joined.weights.digest)

    def follow(
        self,
        policy: Any,
        pins: dict[str, str],
        change: Change = lambda _: None,
        folder: Path | None = None,
    ) -> None:
        class Between(httpx.HTTPTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                answer = super().handle_request(request)
                answer.read()
                page = answer.json()
                change(page["items"])
                return httpx.Response(200, json=page)

        api = self.connect(read_key(self.folder), Between())
        Roster(folder or self.folder, policy, pins).follow(self.manifest(), api)

    @property
    def pins(self) -> dict[str, str]:
        return {"other": name_of(self.second.key), "me": name_of(read_key(self.folder))}


@pytest.fixture
def scene(served: Served, tmp_path: Path) -> Iterator[TwoMembers]:
    with ExitStack() as opened:
        yield TwoMembers(served, tmp_path, "pinned", opened)


def test_pinned_policy_admits_pinned_members_only(scene: TwoMembers) -> None:
    for pins in ({}, {"other": scene.pins["other"]}, scene.pins | {"me": scene.pins["other"]}):
        with pytest.raises(RosterRefused, match="not pinned"):
            scene.follow("pinned", pins)
    scene.follow("pinned", scene.pins)
    with pytest.raises(RosterRefused, match="not pinned"):
        scene.follow("pinned", {"me": scene.pins["me"]})  # a pin that is taken out shuts its member out


def test_tofu_policy_stores_members_on_first_use(scene: TwoMembers) -> None:
    scene.follow("tofu", {})
    state = json.loads((scene.folder / "roster.json").read_text())
    assert {member["name"] for member in state["members"].values()} == {"other", "me"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda links: links.pop(), "shorter"),
        (lambda links: links.reverse(), "does not follow"),
        (lambda links: links[1].update(previous=None), "does not follow"),
        (lambda links: links[1].update(public_key="A" * 43), "not the roster"),
        (lambda links: links[1].update(name="other"), "a second client has the name"),
        (lambda links: links[1].update(event="invited"), "cannot be read"),
    ],
)
def test_changed_roster_is_refused(scene: TwoMembers, change: Change, message: str) -> None:
    with pytest.raises(RosterRefused, match=message):
        scene.follow("tofu", {}, change)


def test_endorsed_key_replaces_a_pinned_one(scene: TwoMembers) -> None:
    pins, before = scene.pins, (scene.folder / "client.key").read_bytes()
    replace_key(scene.connect, scene.folder)
    assert (scene.folder / "client.key").read_bytes() != before
    assert not (scene.folder / "next.key").exists()
    for change, message in (
        (lambda links: links[2].update(endorsement="A" * 86), "not endorsed"),
        (lambda links: links[2].update(client=links[0]["client"]), "did not have"),
    ):
        with pytest.raises(RosterRefused, match=message):
            scene.follow("pinned", pins, change)
    scene.follow("pinned", pins)


def test_rotated_member_is_admitted_by_either_pin(scene: TwoMembers, tmp_path: Path) -> None:
    before, renewed = scene.pins, Ed25519PrivateKey.generate()
    for new in (Ed25519PrivateKey.generate(), renewed):
        request = rotation(scene.second, new)
        assert scene.second.http.put("/v1/me/key", json=request).status_code == 200
        scene.second = Silo(scene.second.client_id, scene.federation_id, new, scene.served.signing(new))
    after = before | {"other": name_of(renewed)}
    for number, pins in enumerate((before, after)):  # each in a silo that sees the roster for the first time
        scene.follow("pinned", pins, folder=tmp_path / str(number))
    scene.follow("pinned", before, folder=tmp_path / "1")
    stranger = before | {"other": name_of(Ed25519PrivateKey.generate())}
    with pytest.raises(RosterRefused, match=r"'other' with key .* is not pinned"):
        scene.follow("pinned", stranger, folder=tmp_path / "2")
    for policy, pins in (("pinned", after), ("tofu", {})):
        with pytest.raises(RosterRefused, match="not endorsed"):
            scene.follow(policy, pins, _without_endorsement, tmp_path / "3")


def _without_endorsement(links: list[dict[str, Any]]) -> None:
    links[2].update(endorsement="A" * 86)


def test_revoked_member_needs_no_pin_and_keeps_name(scene: TwoMembers, tmp_path: Path) -> None:
    path = f"/v1/federations/{scene.federation_id}/clients/{scene.second.client_id}"
    assert scene.served.admin.delete(path).status_code == 204
    scene.follow("pinned", {"me": scene.pins["me"]}, folder=tmp_path / "new")
    for change in (
        lambda links: links[2].update(name="freed"),
        lambda links: links[1].update(client=links[0]["client"], name="freed"),
    ):
        with pytest.raises(RosterRefused, match="changed its name"):
            scene.follow("tofu", {}, change, tmp_path / "other")


def test_damaged_roster_is_refused(scene: TwoMembers) -> None:
    scene.follow("tofu", {})
    file = scene.folder / "roster.json"
    content = file.read_text()
    for damaged in ("", "[]", content[:-9], content.replace('"keys"', '"key"')):
        file.write_text(damaged)
        with pytest.raises(SettingsUnusable, match=r"roster\.json is damaged; restore it"):
            scene.follow("tofu", {})


def test_pins_are_names_and_keys(tmp_path: Path, scene: TwoMembers) -> None:
    file = tmp_path / "pins.json"
    file.write_text(json.dumps(scene.pins))
    assert read_pins(file) == scene.pins
    assert read_pins(None) == {}
    for text in ("[]", '{"a": 1}', '{"a": "AAAA"}', "{"):
        file.write_text(text)
        with pytest.raises(SettingsUnusable, match="roster"):
            read_pins(file)
