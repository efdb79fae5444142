"""Enrol again in a folder of an earlier client: its files are moved aside, not used and not lost."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent.errors import KeyRefused
from client_agent.identity.agent_folder import Membership
from client_agent.identity.manifests import Manifests
from client_agent.identity.membership import encode_pem, enrol, read_key, set_aside_earlier_client
from client_agent.storage.round_folder import SCORES_SENT, WEIGHTS, RoundFolders
from client_agent.transport.client import CoordinatorApi
from schemas.messages.enrolment import Profile
from tests.scene.coordinator import PROFILE, Served
from tests.scene.rounds import PLAN

AGENT = Profile.model_validate(PROFILE)


class SharedFolder:
    """A federation, and a folder in which one client after the other enrols."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.federation_id = served.federation(**PLAN)
        self.home = folder / self.federation_id
        served.start_federation(self.federation_id)

    def enrol(self, name: str, token: str | None = None) -> Membership:
        with CoordinatorApi(self.served.url, key=None, deadline_seconds=0) as api:
            enrolment_token = token or self.served.enrolment_token(self.federation_id, name)
            return enrol(api, self.folder, token=enrolment_token, name=name, profile=AGENT)

    def take_part(self, member: Membership) -> None:
        """Join round 1, accept its manifest, and store files of it."""
        with CoordinatorApi(self.served.url, key=read_key(self.folder), deadline_seconds=0) as api:
            joined = api.join(self.federation_id, 1, None)
            manifests = Manifests(self.home, self.federation_id, member.client_id, member.server_key)
            manifests.accept(joined.manifest, api, round_number=1, weights=joined.weights.digest)
        round_1 = RoundFolders(self.home / "rounds").open(1)
        for name in (WEIGHTS, SCORES_SENT):
            round_1.write(name, member.client_id.encode())

    def shut_out(self, member: Membership) -> None:
        path = f"/v1/federations/{self.federation_id}/clients/{member.client_id}"
        assert self.served.admin.delete(path).status_code == 204
        (self.folder / "membership.json").unlink()


@pytest.fixture
def scene(served: Served, tmp_path: Path) -> SharedFolder:
    return SharedFolder(served, tmp_path)


def test_key_of_another_client_is_named_by_file(scene: SharedFolder) -> None:
    scene.shut_out(scene.enrol("first"))
    token = scene.served.enrolment_token(scene.federation_id, "second")
    with pytest.raises(KeyRefused, match=str(scene.folder / "client.key")) as refusal:
        scene.enrol("second", token)
    assert "move that file away" in str(refusal.value)
    (scene.folder / "client.key").unlink()
    assert scene.enrol("second", token).name == "second", "the token was not spent"


def test_files_of_an_earlier_client_are_moved_aside(
    scene: SharedFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(("first", "second")):
        member = scene.enrol(name)
        scene.take_part(member)
        evidence = (scene.home / "manifest.json").read_bytes()
        (scene.folder / "next.key").write_bytes(encode_pem(Ed25519PrivateKey.generate()))
        scene.shut_out(member)
        (scene.folder / "client.key").unlink()
        with caplog.at_level(logging.WARNING):
            again = scene.enrol(f"after-{name}")
        moved = scene.folder / "earlier" / f"{scene.federation_id}-{2 * number + 1}"
        assert f"{scene.home}: moved to {moved} (left by an earlier client)" in caplog.text
        assert (moved / "manifest.json").read_bytes() == evidence
        assert (moved / "rounds" / "000001" / WEIGHTS).read_bytes() == member.client_id.encode()
        assert (scene.folder / "earlier" / f"next.key-{number + 1}").exists()
        assert not scene.home.exists()
        scene.take_part(again)
        assert json.loads((scene.home / "manifest.json").read_text())["client"] == again.client_id
        scene.shut_out(again)
        (scene.folder / "client.key").unlink()


def test_client_without_membership_file_recovers_by_token(scene: SharedFolder) -> None:
    token = scene.served.enrolment_token(scene.federation_id, "first")
    member = scene.enrol("first", token)
    scene.take_part(member)
    (scene.folder / "membership.json").unlink()
    assert scene.enrol("first", token) == member
    assert (scene.home / "manifest.json").exists()
    assert not (scene.folder / "earlier").exists()


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"federation": "FED", "client": "CLIENT"}', None])
def test_files_without_this_clients_manifest_are_moved_aside(
    scene: SharedFolder, content: str | None
) -> None:
    """A new coordinator, or a damaged disk; None: rounds without a manifest."""
    member = scene.enrol("first")
    scene.take_part(member)
    file = scene.home / "manifest.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content.replace("FED", scene.federation_id).replace("CLIENT", member.client_id))
    set_aside_earlier_client(scene.folder, member)
    assert not scene.home.exists()
    assert (scene.folder / "earlier" / f"{scene.federation_id}-1" / "rounds").is_dir()
