"""Key rotation: resumable after a stop at any point, without losing a valid key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_agent import daemon
from client_agent.daemon import run
from client_agent.errors import CoordinatorRefused, KeyRefused, SettingsUnusable, Stopped
from client_agent.identity import key_rotation, membership
from client_agent.identity.agent_folder import Membership
from client_agent.identity.key_rotation import current_key, replace_key, switch_to_accepted_key
from client_agent.identity.membership import enrol, read_key
from client_agent.session import open_participant
from client_agent.settings import read_settings
from client_agent.training.silo import Silo
from client_agent.transport.client import CoordinatorApi
from schemas.identity.keys import name_of
from schemas.messages.enrolment import Profile
from tests.scene.agent_commands import tessera
from tests.scene.agents import limited_sleep
from tests.scene.coordinator import Served
from tests.scene.key_rotation import let_expire
from tests.scene.silo_config import config

Connect = Callable[[Ed25519PrivateKey], AbstractContextManager[CoordinatorApi]]


class RotatingAgent:
    """One enrolled agent; `connect` signs with a key."""

    def __init__(self, served: Served, folder: Path, opened: ExitStack, profile: Profile) -> None:
        self.served, self.folder, self._opened = served, folder, opened
        self.federation_id = served.federation()
        token = served.enrolment_token(self.federation_id, "aster")
        with CoordinatorApi(served.url, key=None, deadline_seconds=0) as api:
            self.member: Membership = enrol(api, folder, token=token, name="aster", profile=profile)
        self.old = read_key(folder)

    def connect(self, key: Ed25519PrivateKey, transport: httpx.BaseTransport | None = None) -> Any:
        return CoordinatorApi(self.served.url, key=key, deadline_seconds=0, transport=transport)

    def is_accepted(self, key: Ed25519PrivateKey) -> bool:
        try:
            with self.connect(key) as api:
                return bool(api.me().client_id == self.member.client_id)
        except CoordinatorRefused:
            return False


@pytest.fixture
def scene(served: Served, tmp_path: Path, silo: Silo) -> Iterator[RotatingAgent]:
    with ExitStack() as opened:
        yield RotatingAgent(served, tmp_path / "state", opened, silo.profile)


def _stop_before_sending(scene: RotatingAgent, _: pytest.MonkeyPatch) -> Connect:
    def connect(key: Ed25519PrivateKey) -> Any:
        raise Stopped

    return connect


def _stop_after_sending(scene: RotatingAgent, _: pytest.MonkeyPatch) -> Connect:
    class Lost(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            super().handle_request(request).close()
            raise Stopped

    return lambda key: scene.connect(key, Lost())


def _stop(*_: object) -> None:
    raise Stopped


def _stop_before_renaming(scene: RotatingAgent, patch: pytest.MonkeyPatch) -> Connect:
    patch.setattr(key_rotation, "_take_up_next", _stop)
    return scene.connect


def _stop_before_sync(scene: RotatingAgent, patch: pytest.MonkeyPatch) -> Connect:
    def stop(folder: Path) -> None:
        if not (folder / "next.key").exists():
            raise Stopped

    patch.setattr(key_rotation, "fsync_folder", stop)
    return scene.connect


def test_new_key_is_synced_before_it_is_sent(scene: RotatingAgent) -> None:
    """A crash before the folder is synced must not lose a key that the coordinator knows."""
    synced: list[str] = []
    sent: list[list[str]] = []

    def connect(key: Ed25519PrivateKey) -> Any:
        sent.append(list(synced))
        return scene.connect(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "fsync_folder", lambda folder: synced.append(folder.name))
        with pytest.raises(Stopped):
            replace_key(_stop_before_sending(scene, patch), scene.folder)
        synced.clear()
        replace_key(connect, scene.folder)
    assert sent[0] == [scene.folder.name], "the file was there already"


STOPS = {
    "before it is sent": (_stop_before_sending, False),
    "when the answer is lost": (_stop_after_sending, True),
    "before the files are changed": (_stop_before_renaming, True),
    "before the change is on the disk": (_stop_before_sync, True),
}


@pytest.fixture(params=STOPS)
def stopped(
    request: pytest.FixtureRequest, scene: RotatingAgent
) -> tuple[RotatingAgent, Ed25519PrivateKey, bool]:
    """Stop a rotation after a step; return the new key and whether the coordinator accepts it."""
    stop, is_known = STOPS[request.param]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        replace_key(stop(scene, patch), scene.folder)
    is_moved = not (scene.folder / "next.key").exists()
    return scene, read_key(scene.folder, "client.key" if is_moved else "next.key"), is_known


@pytest.mark.parametrize("overlap_is_over", [False, True])
def test_agent_runs_with_the_key_that_is_known(
    stopped: tuple[RotatingAgent, Ed25519PrivateKey, bool], overlap_is_over: bool
) -> None:
    scene, new, is_known = stopped
    if overlap_is_over and is_known:
        let_expire(scene.served, name_of(scene.old))
    for _ in range(2):
        key = current_key(scene.connect, scene.folder)
        assert name_of(key) == name_of(new if is_known else scene.old)
        assert scene.is_accepted(key)
    assert (scene.folder / "next.key").exists() != is_known


@pytest.mark.parametrize("at_once", [False, True])
def test_repeated_rotation_completes_an_interrupted_one(
    stopped: tuple[RotatingAgent, Ed25519PrivateKey, bool], at_once: bool
) -> None:
    scene, new, _ = stopped
    was_finished = not (scene.folder / "next.key").exists()
    replace_key(scene.connect, scene.folder, at_once=at_once)
    key = read_key(scene.folder)
    assert scene.is_accepted(key)
    assert not (scene.folder / "next.key").exists()
    if not was_finished:
        assert name_of(key) == name_of(new), "the key that was made first was not thrown away"
    assert scene.is_accepted(scene.old) != at_once
    assert (scene.folder / "client.key").stat().st_mode & 0o777 == 0o600


def test_agent_start_switches_to_the_new_key(scene: RotatingAgent, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        replace_key(_stop_before_renaming(scene, patch), scene.folder)
    new = read_key(scene.folder, "next.key")
    let_expire(scene.served, name_of(scene.old))
    settings = read_settings(config(tmp_path, url=scene.served.url))
    with open_participant(settings) as participant:
        assert participant.session.api.me().client_id == scene.member.client_id
    assert name_of(read_key(scene.folder)) == name_of(new)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "the old key stays valid until "),
        (("--at-once",), "the old key and all earlier ones are revoked\n"),
    ],
)
def test_rotate_key_prints_the_old_keys_fate(
    scene: RotatingAgent, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    done = tessera("rotate-key", "--config", config(tmp_path, url=scene.served.url), *options)
    assert done.exit_code == 0, done.output
    assert f"the new key is in use; {sentence}" in done.stdout
    assert done.stdout.endswith("next: tessera agent run, as before\n")
    assert scene.is_accepted(scene.old) != bool(options)


class Delayed(httpx.HTTPTransport):
    """Keeps requests to itself; `let_go` has the coordinator answer the first."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._requests.append(request)
        raise Stopped

    def release(self) -> int:
        with httpx.Client() as http:
            return http.send(self._requests[0]).status_code


def test_running_agent_switches_to_a_late_key(
    scene: RotatingAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_WAIT_SECONDS", 0)  # there is no round to wait for
    delayed = Delayed()
    with pytest.raises(Stopped):
        replace_key(lambda key: scene.connect(key, delayed), scene.folder, at_once=True)
    new = read_key(scene.folder, "next.key")
    settings = read_settings(config(tmp_path, url=scene.served.url))
    with open_participant(settings) as participant:
        assert participant.session.api.me().client_id == scene.member.client_id
        assert delayed.release() == 200
        assert not scene.is_accepted(scene.old)
        with pytest.raises(Stopped):
            run(participant, limited_sleep(1))
        assert participant.session.api.me().client_id == scene.member.client_id
    assert name_of(read_key(scene.folder)) == name_of(new)
    assert not (scene.folder / "next.key").exists()


def test_false_acceptance_of_next_key_loses_no_key(scene: RotatingAgent) -> None:
    with pytest.raises(Stopped):
        replace_key(lambda key: scene.connect(key, Delayed()), scene.folder)

    class OldKeyServer(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            me = scene.member
            answer = {"client_id": me.client_id, "name": me.name, "federation_id": me.federation_id}
            return httpx.Response(
                200, json=answer | {"state": "enrolled", "organisation": None, "layout": {}}
            )

    with scene.connect(scene.old, OldKeyServer()) as api:
        assert switch_to_accepted_key(api, scene.folder)
    assert not scene.is_accepted(read_key(scene.folder))
    old_key_file = scene.folder / "earlier" / "client.key-1"
    assert old_key_file.stat().st_mode & 0o777 == 0o600
    old_key_file.replace(scene.folder / "client.key")
    assert scene.is_accepted(read_key(scene.folder))


def test_running_agent_without_a_known_key_ends(scene: RotatingAgent, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        replace_key(lambda key: scene.connect(key, Delayed()), scene.folder)
    settings = read_settings(config(tmp_path, url=scene.served.url))
    with open_participant(settings) as participant:
        let_expire(scene.served, name_of(scene.old))
        with pytest.raises(CoordinatorRefused, match="key-revoked"):
            run(participant, limited_sleep(1))
    assert name_of(read_key(scene.folder)) == name_of(scene.old)
    assert (scene.folder / "next.key").exists()


def test_existing_next_key_is_never_overwritten(scene: RotatingAgent) -> None:
    file = scene.folder / "next.key"
    file.write_text("half a key")
    with pytest.raises(SettingsUnusable, match=r"next\.key is not a private key"):
        replace_key(scene.connect, scene.folder)
    assert file.read_text() == "half a key"


def test_key_of_another_member_is_named_by_file(scene: RotatingAgent) -> None:
    birch = scene.served.enrol(scene.federation_id, "birch")
    file = scene.folder / "next.key"
    file.write_bytes(membership.encode_pem(birch.key))
    with pytest.raises(KeyRefused, match=str(file)):
        replace_key(scene.connect, scene.folder)
    assert name_of(current_key(scene.connect, scene.folder)) == name_of(scene.old)
    assert file.exists()
