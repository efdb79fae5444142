"""An agent and a coordinator that goes back, stands still, leaves out or tells two stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_agent.errors import AnswerUnreadable, ManifestExpired, ManifestRefused
from client_agent.identity.manifests import Manifests
from client_agent.transport.client import CoordinatorApi
from coordinator.storage.server_key import ServerKey
from schemas.identity.keys import decode
from schemas.messages.rounds import FinishedBrief, RoundBrief
from tests.served import SIGNING_KEY, Served, Silo
from tests.taking_part import one_round, plan, running

Document = dict[str, Any]
COORDINATOR = ServerKey(decode(SIGNING_KEY))


def told(document: Document, **changes: Any) -> Document:
    """Sign another version of a manifest with the coordinator's own key, as only a lying one can."""
    said = document | changes
    return said | {"signature": COORDINATOR.sign("tessera-round-v1", said)}


class Client:
    """A client of a real coordinator, and what it holds."""

    def __init__(self, served: Served, silo: Silo, folder: Path) -> None:
        self.silo = silo
        self.operator = served.admin
        self.folder = folder
        self.api = CoordinatorApi(served.url, key=silo.key, deadline_seconds=0)
        self.held = Manifests(folder, silo.federation_id, silo.client_id, COORDINATOR.public)

    def joined(self, number: int) -> Document:
        return self.api.join(self.silo.federation_id, number, None).manifest

    def accept(self, document: Document, held: Manifests | None = None) -> None:
        number, weights = document["round"], document["weights"]
        (held or self.held).accept(document, self.api, number=number, weights=weights)

    @property
    def evidence(self) -> int:
        return len(list((self.folder / "evidence").glob("*.json")))


@pytest.fixture
def client(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], tmp_path: Path
) -> Iterator[tuple[Client, Callable[[int], None]]]:
    served = serve(fresh_database("sqlite"), tick_seconds=0.05)
    fid, silos = running(served, **plan(rounds={"total": 9, "min_clients": 2}))
    one = Client(served, silos[0], tmp_path)
    with one.api:
        yield one, lambda number: one_round(served, fid, silos, number, [1.0, 2.0]) and None


Playing = tuple[Client, Callable[[int], None]]


def test_true_manifests_are_accepted_again_and_again_and_over_missed_rounds(client: Playing) -> None:
    one, play = client
    first = one.joined(1)
    for _ in range(2):
        one.accept(first)
    for number in (1, 2, 3):
        play(number)
    one.accept(one.joined(4))  # it finds the manifests of 2 and 3, which never arrived here
    assert one.evidence == 0


def test_the_final_manifest_follows_a_joined_round_that_was_abandoned(client: Playing) -> None:
    one, play = client
    play(1)
    one.accept(one.joined(2))
    one.operator.post(f"/v1/federations/{one.silo.federation_id}/finish")
    brief = one.api.current_round(one.silo.federation_id)
    assert isinstance(brief, FinishedBrief)
    assert brief.weights is not None
    assert brief.round == 2
    last = one.held.accept(
        brief.manifest, one.api, number=brief.round, weights=brief.weights.digest, final=True
    )
    assert last.round == 3
    assert one.evidence == 0


def test_a_round_that_was_joined_before_is_not_joined_again(client: Playing) -> None:
    one, play = client
    first = one.joined(1)
    one.accept(first)
    play(1)
    one.accept(one.joined(2))
    with pytest.raises(ManifestRefused, match="round 2 was joined before"):
        one.accept(first)
    assert one.evidence == 2


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
def test_a_coordinator_that_tells_two_stories_is_refused_and_both_are_kept(client: Playing, lie: str) -> None:
    one, _ = client
    changes, said = LIES[lie]
    first = one.joined(1)
    one.accept(first)
    with pytest.raises(ManifestRefused, match=said):
        one.accept(told(first, **changes))
    assert one.evidence == 2
    one.accept(first)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": "cli_other"}, "another client"),
        ({"federation": "fed_other"}, "another federation"),
        ({"plan": "sha256:" + "0" * 64}, "not the plan that is served"),
        ({"round": "one"}, "not a manifest"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(client: Playing, changes: dict[str, Any], said: str) -> None:
    one, _ = client
    with pytest.raises(ManifestRefused, match=said):
        one.accept(told(one.joined(1), **changes))


def test_a_manifest_without_the_coordinators_signature_is_refused(client: Playing) -> None:
    one, _ = client
    first = one.joined(1)
    for forged in (first | {"roster_version": 3}, first | {"more": 1}, first | {"signature": "A" * 86}):
        with pytest.raises(ManifestRefused, match="not signed"):
            one.accept(forged)
    with pytest.raises(ManifestRefused, match="not of round 2"):
        one.held.accept(first, one.api, number=2, weights=first["weights"])
    with pytest.raises(ManifestRefused, match="of the weights"):
        one.held.accept(first, one.api, number=1, weights="sha256:" + "0" * 64)
    with pytest.raises(ManifestRefused, match="not a manifest"):
        one.held.accept(None, one.api, number=1, weights=first["weights"])


def test_a_round_that_is_over_is_not_begun(client: Playing) -> None:
    one, play = client
    play(1)
    one.joined(2)
    play(2)
    manifest = one.joined(3)
    ended = told(manifest, deadline="2026-01-01T00:00:00.000000Z")
    late = Manifests(one.folder, one.held.federation, one.held.client, COORDINATOR.public, lambda: 4e9)
    with pytest.raises(ManifestExpired):
        one.accept(ended, late)
    early = Manifests(one.folder, one.held.federation, one.held.client, COORDINATOR.public, lambda: 0.0)
    one.accept(ended, early)


def test_a_brief_must_ask_for_what_the_plan_says(client: Playing) -> None:
    one, _ = client
    brief = one.api.current_round(one.silo.federation_id)
    assert isinstance(brief, RoundBrief)
    one.accept(one.joined(1))
    one.held.hold_to_plan(brief)
    training = brief.training.model_copy(update={"steps": 10**6})
    with pytest.raises(ManifestRefused, match="another training"):
        one.held.hold_to_plan(brief.model_copy(update={"training": training}))


def test_a_missing_manifest_that_is_told_differently_is_noticed(client: Playing) -> None:
    one, play = client
    one.accept(one.joined(1))
    for number in (1, 2):
        play(number)
    third = one.joined(3)

    class Lying(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            answer.read()
            document = told(answer.json(), roster_version=7)
            return httpx.Response(200, json=document) if "/manifest" in request.url.path else answer

    with CoordinatorApi(
        str(one.silo.http.base_url), key=one.silo.key, deadline_seconds=0, transport=Lying()
    ) as lying:
        one.api, honest = lying, one.api
        with pytest.raises(ManifestRefused, match="round 2 is told differently"):
            one.accept(third)
        one.api = honest
    one.accept(third)


def test_a_plan_that_a_join_signature_was_made_under_is_the_one_that_manifests_must_name(
    client: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = client
    first, true = one.joined(1), one.api.plan(one.silo.federation_id)
    with monkeypatch.context() as patched:
        patched.setattr(one.api, "plan", lambda _: b"<html>")
        with pytest.raises(AnswerUnreadable, match="the federation's plan"):
            one.held.fetch_plan(one.api)
        patched.setattr(one.api, "plan", lambda _: true + b" ")
        one.held.fetch_plan(one.api)
    one.held.fetch_plan(one.api)  # what is here stays
    with pytest.raises(ManifestRefused, match="its plan is not the plan that was served before"):
        one.accept(first)
    (kept,) = (one.folder / "evidence").glob("plan-*.json")
    assert kept.read_bytes() == true + b" "
    one.accept(first)  # nobody has to remove a file for that
