"""Rounds with a finished secure sum, stored directly in a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from coordinator.aggregation import job
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.federations import WeightsRow
from coordinator.db.tables.secure_sum import JointModelRow, SumSessionRow
from coordinator.federations import store as federations
from coordinator.federations.layouts import layout_of
from coordinator.rounds import store as rounds
from coordinator.storage import payloads
from coordinator.strategies.opening import open_plan
from schemas.maths.adapter import Layout, size
from schemas.maths.start import from_start
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import WeightsManifest
from schemas.secure_sum.encoding import CLIP_UNIT, clamp_weight, concatenate, largest_encoded, quantise
from schemas.secure_sum.segments import SCORES, WEIGHT, segments_of, values_digest, values_of_segment
from schemas.wire.digests import digest_of
from schemas.wire.envelope import head
from tests.scene.coordinator import PROFILE
from tests.scene.plans import federation_plan
from tests.scene.secure_sums import terms_of
from tests.scene.tensors import split_tensors, zero_tensors
from tests.unit.coordinator.rows import client_row, participation_row

LORA_PROFILE = PROFILE | {"layers": 1, "roles": ["q"], "shapes": {"q": [6, 5]}}
ADAPTERS: dict[str, dict[str, Any]] = {
    "pq": {"rank": 2, "blocks": 2, "roles": ["q", "v"]},
    "lora": {"kind": "lora", "rank": 2, "roles": ["q"]},
}
State = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class MemberUpdate:
    """The training result of one member: the change of each tensor, losses and examples."""

    change: State
    losses: tuple[float, float] = (2.0, 1.0)
    examples: int = 1


def plan(strategy: str = "fedavg", adapter: str = "pq", **secure_sum: Any) -> FederationPlan:
    return federation_plan(
        strategy,
        adapter=ADAPTERS[adapter],
        rounds={"min_clients": 3, "total": 9},
        training={"seed": 3, "steps": 10, "learning_rate": 0.1},
        privacy={"secure_sum": {"minimum": 3, **secure_sum}},
    )


def federation(database: Database, federation_plan: FederationPlan, clients: int) -> str:
    """Make a running federation with enrolled clients `<id>-0`, `<id>-1`, ..."""
    with database.write() as session:
        row = federations.create(session, federation_plan)
        row.state = "running"
        federation_id = row.id
    for number in range(clients):
        enrol(
            database, federation_id, number, PROFILE if federation_plan.adapter.kind == "pq" else LORA_PROFILE
        )
    return federation_id


def enrol(database: Database, federation_id: str, number: int, profile: Mapping[str, Any]) -> str:
    client_id = f"{federation_id}-{number}"
    with database.write() as session:
        facts = {"base_model": profile["base_model"], "profile": dict(profile)}
        session.add(client_row(federation_id, client_id, database_time(session), **facts))
    return client_id


def sum_round(
    database: Database,
    federation_id: str,
    federation_plan: FederationPlan,
    layout: Layout,
    members: Sequence[MemberUpdate],
    number: int = 1,
) -> None:
    """Store a round in state closing, with the total of the members' changes."""
    assert federation_plan.privacy.secure_sum is not None
    bits, segments = federation_plan.privacy.secure_sum.bits, segments_of(federation_plan, layout)
    total = np.sum([_encoded(federation_plan, layout, member) for member in members], axis=0)
    clients = [f"{federation_id}-{place}" for place in range(len(members))]
    terms = terms_of(
        len(members),
        federation=federation_id,
        round=number,
        members=[{"client": client, "key": "a2V5"} for client in clients],
        segments=[segment.model_dump() for segment in segments],
        bits=bits,
        masking=federation_plan.privacy.secure_sum.masking,
    )
    with database.write() as session:
        now = database_time(session)
        row = rounds.latest(session, federation_id)
        if row is None or row.number != number:
            row = rounds.open_round(session, federation_id, number, now)
        row.state = "closing"
        row.collecting_at = row.summing_at = row.closing_at = now
        payload_id, _ = payloads.store_bytes(session, total.astype("<i4").tobytes())
        session.add_all(participation_row(row.id, client, "arrived", now, ready_at=now) for client in clients)
        session.add(
            SumSessionRow(
                round_id=row.id,
                number=1,
                kind="sum",
                state="done",
                terms=terms.model_dump(mode="json"),
                terms_hash=f"{federation_id}-{number}",
                phase_opened_at=now,
                closed={"masked": {"members": list(range(len(members))), "at": now.isoformat()}},
                total_payload_id=payload_id,
                opened_at=now,
                ended_at=now,
            )
        )


def _encoded(federation_plan: FederationPlan, layout: Layout, member: MemberUpdate) -> NDArray[np.int32]:
    """Return the encoded input of a member, as an agent encodes it."""
    summed = federation_plan.privacy.secure_sum
    assert summed is not None
    weight = clamp_weight(member.examples, summed.weigh_up_to)
    parts = []
    for segment in segments_of(federation_plan, layout):
        if segment.name == WEIGHT:
            values, own_weight = np.array([weight], np.float32), 1.0
        elif segment.name == SCORES:
            values, own_weight = np.array(member.losses, np.float32), 1.0
        else:
            values, own_weight = values_of_segment(member.change, layout, segment.name), weight
        parts.append(quantise(values, segment.clip, summed.bits, weight=own_weight))
    return concatenate(parts)


def random_members(layout: Layout, count: int, *, seed: int = 0, largest: float = 0.5) -> list[MemberUpdate]:
    """Return random changes, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [
        MemberUpdate(
            {
                name: rng.uniform(-largest, largest, shape).astype(np.float32)
                for name, shape in layout.items()
            },
            losses=(float(rng.uniform(1, 3)), float(rng.uniform(0, 1))),
            examples=int(rng.integers(1, 40)),
        )
        for _ in range(count)
    ]


def publish(database: Database, block_bytes: int = 4096) -> None:
    claim = job.claim_due(database, 60.0)
    assert claim is not None
    assert job.aggregate(database, claim, block_bytes=block_bytes, between=lambda: None) == 0


def model(database: Database, federation_id: str, number: int = 1) -> JointModelRow:
    with database.read() as session:
        return session.get_one(JointModelRow, (federation_id, number))


def served_state(
    database: Database, federation_id: str, place: int, layout: Layout, number: int = 2
) -> dict[str, NDArray[np.float32]]:
    """Return what a client is served; its body is complete and of the digest that is named."""
    client_id = f"{federation_id}-{place}"
    with database.read() as session:
        row = session.scalars(
            select(WeightsRow).where(WeightsRow.client_id == client_id, WeightsRow.round_number == number)
        ).one()
        assert row.payload_id is not None
        octets = payloads.read(session, row.payload_id, row.begin, row.begin + 4 * size(layout))
    manifest = WeightsManifest(federation=federation_id, recipe={}, round=number, client=client_id, pack=None)
    assert row.head == head(layout, manifest)
    assert (row.digest, row.bytes) == (digest_of(row.head + octets), len(row.head) + len(octets))
    return split_tensors(np.frombuffer(octets, "<f4"), layout)


MEMBERS = 5


def layout_under(federation_plan: FederationPlan) -> Layout:
    profile = PROFILE if federation_plan.adapter.kind == "pq" else LORA_PROFILE
    return layout_of(open_plan(federation_plan), Profile.model_validate(profile), None)


def start_values(federation_plan: FederationPlan, layout: Layout, served_values: State) -> State:
    seed = federation_plan.training.seed
    return {name: from_start(name, served_values.__getitem__, seed, layout) for name in layout}


@dataclass(frozen=True)
class PublishedSum:
    """One round of `published_sums`.

    Attributes:
        start: the model that the members began with.
        mean: the plain mean of their changes.
        served: the model that the first member is served afterwards.
    """

    number: int
    members: list[MemberUpdate]
    start: State
    mean: State
    served: State

    @property
    def expected(self) -> State:
        """The model without the rounding of members."""
        return {name: values + self.mean[name] for name, values in self.start.items()}


def published_sums(
    database: Database, federation_id: str, federation_plan: FederationPlan, rounds_total: int
) -> Iterator[PublishedSum]:
    """Sum and publish rounds of random changes, each from the model of the one before.

    The stored digest of every model is that of the served values.
    """
    layout = layout_under(federation_plan)
    served: State = zero_tensors(layout)
    for number in range(1, rounds_total + 1):
        members = random_members(layout, MEMBERS, seed=number)
        sum_round(database, federation_id, federation_plan, layout, members, number)
        publish(database, block_bytes=1024)
        start = start_values(federation_plan, layout, served)
        mean = {name: np.mean([member.change[name] for member in members], axis=0) for name in layout}
        served = served_state(database, federation_id, 0, layout, number + 1)
        assert model(database, federation_id, number).digest == values_digest(served, layout)
        yield PublishedSum(number, members, start, mean, served)


def rounding(federation_plan: FederationPlan, layout: Layout) -> float:
    """Return the tolerance of a mean: each member rounds to the next integer."""
    clip = segments_of(federation_plan, layout)[0].clip * CLIP_UNIT
    return clip / largest_encoded(16) + 1e-6


def assert_close(actual: State, expected: State, within: float) -> None:
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, atol=within, rtol=0, err_msg=name)
