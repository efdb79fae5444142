"""Stored experts: new revisions alone are downloaded, and each is verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from client_agent.errors import AdapterUnreadable, DownloadDamaged
from client_agent.experts.bank_files import (
    bank_state,
    download_bank,
    experts_of,
    index_of_body,
    plain_names,
    read_bank,
)
from client_agent.rounds.client import Session
from client_agent.storage.round_folder import WEIGHTS, RoundFolder, RoundFolders
from client_agent.transport.client import TensorBody
from schemas.messages.experts import ExpertManifest
from schemas.messages.updates import BankIndex, ExpertReference, WeightsManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import pack
from tests.scene.tensors import filled_tensors

LAYOUT = {"l0.q.A": (1, 2), "l0.q.B": (2, 1)}


def expert_body(expert: int, revision: int, fill: float) -> bytes:
    return pack(
        filled_tensors(LAYOUT, fill),
        ExpertManifest(federation="fed", recipe={}, round=revision, expert=expert),
    )


@dataclass
class Coordinator:
    """The downloads of a coordinator, and a record of the requested ones."""

    bodies: dict[tuple[int, int], bytes]
    downloads: list[tuple[int, int]] = field(default_factory=list)

    def expert(self, _: str, expert: int, revision: int) -> TensorBody:
        self.downloads.append((expert, revision))
        body = self.bodies[expert, revision]
        return TensorBody(body, digest_of(body), "")


@dataclass
class Client:
    """A client's folder of a federation."""

    home: Path
    api: Coordinator
    federation_id: str = "fed"

    @property
    def rounds(self) -> RoundFolders:
        return RoundFolders(self.home / "rounds")

    def begin(self, number: int, *revisions: tuple[int, int]) -> RoundFolder:
        """Begin a round with these revisions; those that the coordinator lacks have another digest."""
        entries = []
        for expert, revision in revisions:
            body = self.api.bodies.get((expert, revision), b"")
            digest = digest_of(body) if revision else None
            entries.append(
                ExpertReference(expert=expert, revision=revision, digest=digest, bytes=len(body), prior=0.5)
            )
        manifest = WeightsManifest(
            federation="fed", recipe={}, round=number, client="c", pack=None, bank=BankIndex(experts=entries)
        )
        weights, folder = pack(filled_tensors(LAYOUT, 0.5), manifest), self.rounds.open(number)
        download_bank(cast("Session", self), self.rounds, folder, weights, LAYOUT)
        folder.write(WEIGHTS, weights)
        return folder

    @property
    def stored(self) -> int:
        return len(list((self.home / "experts").iterdir()))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    bodies = {(e, r): expert_body(e, r, e + r / 10) for e in (1, 2) for r in (1, 2, 3)}
    return Client(tmp_path, Coordinator(bodies))


def test_changed_experts_alone_are_downloaded(client: Client) -> None:
    client.begin(1, (1, 0), (2, 0))
    assert client.api.downloads == []
    client.begin(2, (1, 1), (2, 0))
    folder = client.begin(3, (1, 1), (2, 2))
    assert client.api.downloads == [(1, 1), (2, 2)]
    state = read_bank(client.home, folder, LAYOUT)
    assert {name: float(values.flat[0]) for name, values in state.items()} == pytest.approx(
        {
            "x0.l0.q.A": 0.5,
            "x0.l0.q.B": 0.5,
            "x1.l0.q.A": 1.1,
            "x1.l0.q.B": 1.1,
            "x2.l0.q.A": 2.2,
            "x2.l0.q.B": 2.2,
        }
    )
    assert list(plain_names(state))[:2] == ["l0.q.A", "l0.q.B"]
    assert experts_of(index_of_body(folder.read(WEIGHTS), LAYOUT)) == (0, 1, 2)


def test_revisions_that_no_stored_round_names_are_deleted(client: Client) -> None:
    for number in (1, 2, 3):
        client.begin(number + 1, (1, number), (2, 1))
    assert client.stored == 4
    (client.rounds.open(2).path / "bank.json").unlink()
    client.begin(5, (1, 3), (2, 1))
    assert client.stored == 3


def test_lost_or_damaged_expert_is_downloaded_again(client: Client) -> None:
    client.begin(2, (1, 1), (2, 1))
    first, second = sorted((client.home / "experts").iterdir())
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    client.begin(2, (1, 1), (2, 1))
    assert sorted(client.api.downloads) == [(1, 1), (1, 1), (2, 1), (2, 1)]


def test_missing_expert_is_reported(client: Client) -> None:
    folder = client.begin(2, (1, 1))
    for file in (client.home / "experts").iterdir():
        file.unlink()
    with pytest.raises(AdapterUnreadable, match="revision 1 of expert 1 is missing"):
        read_bank(client.home, folder, LAYOUT)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (expert_body(2, 1, 1.0), AdapterUnreadable),
        (expert_body(1, 2, 1.0), AdapterUnreadable),
        (expert_body(1, 1, 1.0)[:-4], AdapterUnreadable),
    ],
    ids=["another expert", "another revision", "cut"],
)
def test_invalid_body_of_an_expert_is_refused(client: Client, body: bytes, error: type[Exception]) -> None:
    client.api.bodies[1, 1] = body
    with pytest.raises(error):
        client.begin(2, (1, 1))


def test_expert_of_an_unsigned_digest_is_refused(client: Client) -> None:
    replaced: Any = expert_body(1, 1, 7.0)
    original = client.api.expert
    client.api.expert = lambda *place: (
        TensorBody(replaced, digest_of(replaced), "") if original(*place) else None
    )  # type: ignore[method-assign]
    with pytest.raises(DownloadDamaged, match="revision 1 of expert 1"):
        client.begin(2, (1, 1))


def test_weights_without_a_bank_are_refused(client: Client) -> None:
    manifest = WeightsManifest(federation="fed", recipe={}, round=1, client="c", pack=None)
    with pytest.raises(AdapterUnreadable, match="name no bank"):
        index_of_body(pack(filled_tensors(LAYOUT, 0.0), manifest), LAYOUT)
    with pytest.raises(AdapterUnreadable):
        bank_state(client.home, b"damaged", BankIndex(experts=[]), LAYOUT)
