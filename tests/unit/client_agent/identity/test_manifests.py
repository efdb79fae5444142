"""Manifests of a coordinator that goes back, repeats, omits or contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from client_agent.errors import AnswerUnreadable, ManifestExpired, ManifestRefused
from client_agent.identity.manifests import Manifests
from client_agent.transport.client import CoordinatorApi
from coordinator.db.engine import Database
from coordinator.db.tables.federations import FederationRow
from coordinator.storage.server_key import ServerKey
from schemas.identity.keys import decode
from schemas.messages.federations import ScoresPlan
from schemas.messages.rounds import FinishedBrief, RoundBrief
from schemas.wire.digests import digest_of
from tests.scene.coordinator import SIGNING_KEY, Served, Silo
from tests.scene.rounds import one_round, plan, running

Document = dict[str, Any]
COORDINATOR = ServerKey(decode(SIGNING_KEY))


def forged(document: Document, **changes: Any) -> Document:
    """Return a manifest with changed fields, signed with the coordinator's key."""
    changed = document | changes
    return changed | {"signature": COORDINATOR.sign("tessera-round-v1", changed)}


class Client:
    """A client of a real coordinator, with its manifests."""

    def __init__(self, served: Served, silo: Silo, folder: Path) -> None:
        self.silo = silo
        self.operator = served.admin
        self.folder = folder
        self.api = CoordinatorApi(served.url, key=silo.key, deadline_seconds=0)
        self.manifests = Manifests(folder, silo.federation_id, silo.client_id, COORDINATOR.public)

    def joined(self, number: int) -> Document:
        return self.api.join(self.silo.federation_id, number, None).manifest

    def accept(self, document: Document, manifests: Manifests | None = None) -> None:
        number, weights = document["round"], document["weights"]
        (manifests or self.manifests).accept(document, self.api, round_number=number, weights=weights)

    @property
    def evidence(self) -> int:
        return len(list((self.folder / "evidence").glob("*.json")))


@pytest.fixture
def client_and_rounds(served: Served, tmp_path: Path) -> Iterator[tuple[Client, Callable[[int], None]]]:
    federation_id, silos = running(served, **plan(rounds={"total": 9, "min_clients": 2}))
    client = Client(served, silos[0], tmp_path)
    with client.api:
        yield client, lambda number: one_round(served, federation_id, silos, number, [1.0, 2.0]) and None


ClientAndRounds = tuple[Client, Callable[[int], None]]


def test_true_manifests_are_accepted_repeatedly_and_after_gaps(client_and_rounds: ClientAndRounds) -> None:
    client, run_round = client_and_rounds
    first = client.joined(1)
    for _ in range(2):
        client.accept(first)
    for number in (1, 2, 3):
        run_round(number)
    client.accept(client.joined(4))  # it finds the manifests of 2 and 3, which never arrived here
    assert client.evidence == 0


def test_final_manifest_follows_an_abandoned_round(client_and_rounds: ClientAndRounds) -> None:
    client, run_round = client_and_rounds
    run_round(1)
    client.accept(client.joined(2))
    client.operator.post(f"/v1/federations/{client.silo.federation_id}/finish")
    brief = client.api.current_round(client.silo.federation_id)
    assert isinstance(brief, FinishedBrief)
    assert brief.weights is not None
    assert brief.round == 2
    last = client.manifests.accept(
        brief.manifest, client.api, round_number=brief.round, weights=brief.weights.digest, final=True
    )
    assert last.round == 3
    assert client.evidence == 0


def test_earlier_round_is_not_joined_again(client_and_rounds: ClientAndRounds) -> None:
    client, run_round = client_and_rounds
    first = client.joined(1)
    client.accept(first)
    run_round(1)
    client.accept(client.joined(2))
    with pytest.raises(ManifestRefused, match="round 2 was joined before"):
        client.accept(first)
    assert client.evidence == 2


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another deadline": ({"deadline": "2031-01-01T00:00:00.000000Z"}, "two manifests of round 1"),
    "a later roster": ({"roster_version": 9}, "two manifests of round 1"),
    "round 2 after nothing": ({"round": 2}, "does not follow"),
    "round 2 after another round 1": (
        {"round": 2, "previous": {"round": 1, "hash": "sha256:" + "0" * 64}},
        "does not follow",
    ),
    "another plan": ({"round": 2, "plan": "sha256:" + "0" * 64}, "the plan was changed"),
    "an older roster": ({"round": 2, "roster_version": 1}, "the roster went back"),
    "two rosters": ({"round": 2, "roster_hash": "sha256:" + "0" * 64}, "two rosters"),
}


@pytest.mark.parametrize("lie", LIES)
def test_contradictory_manifests_are_refused_and_stored(client_and_rounds: ClientAndRounds, lie: str) -> None:
    client, _ = client_and_rounds
    changes, message = LIES[lie]
    first = client.joined(1)
    client.accept(first)
    with pytest.raises(ManifestRefused, match=message):
        client.accept(forged(first, **changes))
    assert client.evidence == 2
    client.accept(first)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": "cli_other"}, "another client"),
        ({"federation": "fed_other"}, "another federation"),
        ({"plan": "sha256:" + "0" * 64}, "not the plan that is served"),
        ({"round": "one"}, "not a manifest"),
    ],
)
def test_manifest_of_another_client_is_refused(
    client_and_rounds: ClientAndRounds, changes: dict[str, Any], message: str
) -> None:
    client, _ = client_and_rounds
    with pytest.raises(ManifestRefused, match=message):
        client.accept(forged(client.joined(1), **changes))


def test_manifest_without_the_coordinators_signature_is_refused(client_and_rounds: ClientAndRounds) -> None:
    client, _ = client_and_rounds
    first = client.joined(1)
    for unsigned in (first | {"roster_version": 3}, first | {"more": 1}, first | {"signature": "A" * 86}):
        with pytest.raises(ManifestRefused, match="not signed"):
            client.accept(unsigned)
    with pytest.raises(ManifestRefused, match="not of round 2"):
        client.manifests.accept(first, client.api, round_number=2, weights=first["weights"])
    with pytest.raises(ManifestRefused, match="of the weights"):
        client.manifests.accept(first, client.api, round_number=1, weights="sha256:" + "0" * 64)
    with pytest.raises(ManifestRefused, match="not a manifest"):
        client.manifests.accept(None, client.api, round_number=1, weights=first["weights"])


def test_manifest_of_an_expired_round_is_refused(client_and_rounds: ClientAndRounds) -> None:
    client, run_round = client_and_rounds
    run_round(1)
    client.joined(2)
    run_round(2)
    manifest = client.joined(3)
    ended = forged(manifest, deadline="2026-01-01T00:00:00.000000Z")
    late = Manifests(
        client.folder, client.manifests.federation, client.manifests.client, COORDINATOR.public, lambda: 4e9
    )
    with pytest.raises(ManifestExpired):
        client.accept(ended, late)
    early = Manifests(
        client.folder, client.manifests.federation, client.manifests.client, COORDINATOR.public, lambda: 0.0
    )
    client.accept(ended, early)


def test_brief_that_differs_from_the_plan_is_refused(client_and_rounds: ClientAndRounds) -> None:
    client, _ = client_and_rounds
    brief = client.api.current_round(client.silo.federation_id)
    assert isinstance(brief, RoundBrief)
    client.accept(client.joined(1))
    client.manifests.hold_to_plan(brief)
    training = brief.training.model_copy(update={"steps": 10**6})
    with pytest.raises(ManifestRefused, match="another training"):
        client.manifests.hold_to_plan(brief.model_copy(update={"training": training}))
    scores = brief.scores.model_copy(update={"examples": 10**6})
    with pytest.raises(ManifestRefused, match="another scores"):
        client.manifests.hold_to_plan(brief.model_copy(update={"scores": scores}))
    with pytest.raises(ManifestRefused, match="another total_rounds"):
        client.manifests.hold_to_plan(brief.model_copy(update={"total_rounds": 1}))


def test_plan_of_an_earlier_version_keeps_its_digest(
    serve: Callable[..., Served], database_url: str, database: Database, tmp_path: Path
) -> None:
    served = serve(database_url)
    federation_id, silos = running(served)
    with database.write() as session:
        row = session.scalars(select(FederationRow).where(FederationRow.id == federation_id)).one()
        old = {name: value for name, value in row.plan.items() if name != "scores"}
        training = {name: value for name, value in old["training"].items() if name != "schedule_floor"}
        row.plan = old | {"training": training | {"learning_rate": 0.01}}
    client = Client(served, silos[0], tmp_path)
    with client.api:
        client.manifests.fetch_plan(client.api)
        brief = client.api.current_round(federation_id)
        assert isinstance(brief, RoundBrief)
        client.manifests.hold_to_plan(brief)
        document = client.joined(1)
        client.accept(document)
        sent = client.api.plan(federation_id)
    assert b"schedule_floor" not in sent
    assert document["plan"] == digest_of(sent)
    assert (brief.training.learning_rate, brief.training.schedule_floor) == (0.01, 0.0)
    assert (brief.scores, brief.total_rounds) == (ScoresPlan(), 3)


def test_changed_intermediate_manifest_is_refused(client_and_rounds: ClientAndRounds) -> None:
    client, run_round = client_and_rounds
    client.accept(client.joined(1))
    for number in (1, 2):
        run_round(number)
    third = client.joined(3)

    class ForgedManifests(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            answer.read()
            document = forged(answer.json(), roster_version=7)
            return httpx.Response(200, json=document) if "/manifest" in request.url.path else answer

    with CoordinatorApi(
        str(client.silo.http.base_url), key=client.silo.key, deadline_seconds=0, transport=ForgedManifests()
    ) as lying:
        client.api, honest = lying, client.api
        with pytest.raises(ManifestRefused, match="there are two manifests of round 2"):
            client.accept(third)
        client.api = honest
    client.accept(third)


def test_manifest_must_name_the_plan_served_at_join(
    client_and_rounds: ClientAndRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = client_and_rounds
    first, true = client.joined(1), client.api.plan(client.silo.federation_id)
    with monkeypatch.context() as patched:
        patched.setattr(client.api, "plan", lambda _: b"<html>")
        with pytest.raises(AnswerUnreadable, match="the federation's plan"):
            client.manifests.fetch_plan(client.api)
        patched.setattr(client.api, "plan", lambda _: true + b" ")
        client.manifests.fetch_plan(client.api)
    client.manifests.fetch_plan(client.api)  # what is here stays
    with pytest.raises(ManifestRefused, match="its plan is not the plan that was served before"):
        client.accept(first)
    (stored,) = (client.folder / "evidence").glob("plan-*.json")
    assert stored.read_bytes() == true + b" "
    client.accept(first)  # nobody has to remove a file for that
