"""Rounds of a bank of experts over HTTP: inputs as agents encode them, sums without masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_agent.rounds.sum_input import RoundResult, SumInput
from schemas.maths.bank import bank_layout, bank_tensor, counted_groups
from schemas.messages.experts import ExpertManifest
from schemas.messages.federations import FederationPlan
from schemas.messages.scores import Scores
from schemas.messages.secure_sum import CAPABILITY, SumStatus
from schemas.messages.updates import BankIndex, WeightsManifest
from schemas.secure_sum.segments import segment_of
from schemas.wire.digests import digest_of
from schemas.wire.envelope import slots, unpack
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import LAYOUT, plan, running, scored, url, wait_for
from tests.scene.sum_members import MASKED, SumClient, roster_of
from tests.scene.waiting import wait_until

State = dict[str, NDArray[np.float32]]
SCORES = Scores.model_validate(scored({"loss": 1.0}))


@dataclass(frozen=True)
class MemberUpdate:
    """The training result of a member: the changes of the shared expert and of its specialist.

    `costs` are what other specialists in its place cost the member; it has no probe set without them.
    """

    expert: int
    change: float
    shared: float = 0.0
    rejects: bool = False
    responsibility: float = 1.0
    costs: Mapping[int, float] = field(default_factory=dict)


@dataclass
class BankScene:
    """A running federation with strategy `fed_vemoe` over P and Q of one module."""

    served: Served
    federation_id: str
    silos: list[Silo]
    plan: FederationPlan
    summed: tuple[str, ...] = ()
    """The segments of the newest sum."""

    def begin(self, silo: Silo, number: int) -> tuple[State, BankIndex, str]:
        """Join a round; return the bank that the client begins with, its index, and the weights' digest."""
        joined = silo.http.post(url(silo, number, "/join"))
        assert joined.status_code == 200, joined.text
        answer = silo.http.get(url(silo, number, "/weights"))
        with unpack(answer.content, encoding=None, expected=slots(LAYOUT), max_bytes=2**24) as envelope:
            index = envelope.manifest(WeightsManifest).bank
            state = {name: envelope.read_float32(name) for name in LAYOUT}
        assert index is not None
        for entry in index.experts:
            values = self.expert(silo, entry.expert, entry.revision) if entry.digest is not None else None
            for name, shape in LAYOUT.items():
                tensor = values[name] if values is not None else np.zeros(shape, np.float32)
                state[bank_tensor(entry.expert, name)] = tensor
        return state, index, str(joined.json()["weights"]["digest"])

    def expert(self, silo: Silo, expert: int, revision: int) -> State:
        """Download a revision of an expert."""
        answer = silo.http.get(f"/v1/federations/{self.federation_id}/experts/{expert}/{revision}")
        assert answer.status_code == 200, answer.text
        assert answer.headers["etag"].strip('"') == digest_of(answer.content)
        with unpack(answer.content, encoding=None, expected=slots(LAYOUT), max_bytes=2**24) as envelope:
            manifest = envelope.manifest(ExpertManifest)
            assert (manifest.expert, manifest.round) == (expert, revision)
            return {name: envelope.read_float32(name) for name in LAYOUT}

    def run_round(self, number: int, changes: Sequence[MemberUpdate]) -> dict[str, Any]:
        """Train, count and sum all silos; return the published round."""
        members = []
        for silo, result in zip(self.silos, changes, strict=True):
            content, memberships = self._encode(silo, number, result)
            request = SumInput.from_bytes(content, ()).ready
            ready = silo.http.put(
                url(silo, number, "/ready"), json=request.model_dump(mode="json") | {"format": CAPABILITY}
            )
            assert ready.status_code == 201, ready.text
            client = SumClient(silo, number, values=request.values, memberships=memberships)
            members.append((client, content))
        for session in (1, 2):
            keys, version, link = roster_of(self.served.admin, self.federation_id)
            wait_until(lambda session=session: _in_session(members[0][0], session))
            for client, content in members:
                client.begin(keys, version, link)
                assert client.terms is not None
                client.input = SumInput.from_bytes(content, client.terms.segments).values
                self.summed = tuple(segment.name for segment in client.terms.segments)
            for client, _ in members:
                sent = client.put(MASKED)
                assert sent.status_code == 201, sent.text
        return wait_for(self.served, self.federation_id, number, "published")

    def shown(self) -> dict[str, Any]:
        """Return the bank of the view for people."""
        answer = self.served.admin.get(f"/v1/federations/{self.federation_id}/experts")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def _encode(self, silo: Silo, number: int, change: MemberUpdate) -> tuple[bytes, frozenset[str]]:
        served, index, base = self.begin(silo, number)
        trained = {name: values + np.float32(self._change(name, change)) for name, values in served.items()}
        layout = bank_layout(LAYOUT, [entry.expert for entry in index.experts])
        groups = counted_groups(sorted({segment_of(name) for name in layout}))
        summed = self.plan.privacy.secure_sum
        assert summed is not None
        result = RoundResult(
            plan=self.plan,
            summed=summed,
            layout=layout,
            served=served,
            trained=trained,
            scores=SCORES,
            examples=16,
            base=base,
            groups=groups,
            bank=index,
            responsibilities={change.expert: change.responsibility},
            rejects=change.rejects,
            differences={change.expert: change.costs},
        )
        memberships = {f"x{change.expert}"} | ({"reject"} if change.rejects else set())
        return result.encode(number), frozenset(memberships)

    @staticmethod
    def _change(name: str, change: MemberUpdate) -> float:
        if name.startswith(f"x{change.expert}."):
            return change.change
        return 0.0 if name.startswith("x") else change.shared


def bank_scene(served: Served, clients: int, **options: Any) -> BankScene:
    """Start a federation with two experts that are chosen from the first round on."""
    summed = {"masking": "none", "minimum": 3, "clip": 2.0}
    quick = {"experts": 2, "explore_rounds": 0, "grace": 0, "birth_patience": 1, "birth_cooldown": 0}
    bank_plan = plan(
        privacy={"secure_sum": summed},
        rounds={"total": 6, "min_clients": clients, "quorum": clients},
        strategy={"name": "fed_vemoe", "options": {**quick, **options}},
    )
    federation_id, silos = running(served, clients, **bank_plan)
    shown = served.admin.get(f"/v1/federations/{federation_id}").json()["plan"]
    return BankScene(served, federation_id, silos, FederationPlan.model_validate(shown))


def _in_session(client: SumClient, number: int) -> SumStatus | None:
    status = client.status()
    return status if status is not None and status.session == number else None
