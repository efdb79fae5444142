"""Base deltas over HTTP: clients that were present, absent or new."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from coordinator.aggregation import retention
from coordinator.db.tables.federations import FoldRow
from schemas.messages.updates import FoldedWeightsManifest
from schemas.wire.envelope import unpack
from schemas.wire.header import Slot
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import join, put, update_body, url, wait_for

Floats = NDArray[np.float64]
SHAPES = {"q": [5, 6], "down": [4, 5]}
MODULES = {f"l{layer}.{role}": shape for layer in range(2) for role, shape in SHAPES.items()}
RANK = 2
PLAN: dict[str, Any] = {
    "adapter": {"kind": "lora", "rank": RANK, "blocks": 1, "roles": ["q", "down"]},
    "rounds": {"total": 6, "min_clients": 2, "collect_seconds": 600},
    "signature": {"dim": 4},
}


@dataclass
class Client:
    """A silo that tracks its base model, and sends random adapters."""

    silo: Silo
    examples: int = 10
    base: dict[str, Floats] = field(default_factory=lambda: {m: np.zeros(s) for m, s in MODULES.items()})
    round: int = 1
    adapter: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    fold_from: int | None = None
    ranks: dict[str, int] = field(default_factory=dict)

    def pull(self, number: int) -> None:
        """Join, and apply the weights to the base model."""
        join(self.silo, number)
        body = self.silo.http.get(url(self.silo, number, "/weights")).content
        slots = {}
        for module, (d_out, d_in) in MODULES.items():
            for prefix, rank in (("", RANK), ("R", None)):
                slots[f"{module}.{prefix}A"] = Slot((rank, d_in), optional=True)
                slots[f"{module}.{prefix}B"] = Slot((d_out, rank), optional=True)
        with unpack(body, encoding=None, expected=slots, max_bytes=2**20) as envelope:
            manifest = envelope.manifest(FoldedWeightsManifest)
            read = {name: envelope.read_float32(name) for name in envelope.names}
        assert manifest.fold_from in (None, 1, self.round) or manifest.round == self.round
        self.fold_from = manifest.fold_from
        for module, before in self.base.items() if manifest.round > self.round else ():
            wide = {name: values.astype(np.float64) for name, values in read.items()}
            new = np.zeros_like(before)
            if f"{module}.RA" in read:
                new = wide[f"{module}.RB"] @ wide[f"{module}.RA"]
                self.ranks[module] = len(read[f"{module}.RA"])
            whole = manifest.fold_from in (None, 1)
            self.base[module] = new if whole else before + new
        self.round = manifest.round
        self.adapter = {name: values for name, values in read.items() if name.rpartition(".")[2] in "AB"}

    def push(self, number: int, seed: int) -> dict[str, NDArray[np.float32]]:
        """Send an adapter; return it."""
        rng = np.random.default_rng(seed)
        sent = {}
        for module, (d_out, d_in) in MODULES.items():
            sent[f"{module}.A"] = rng.standard_normal((RANK, d_in)).astype(np.float32)
            sent[f"{module}.B"] = rng.standard_normal((d_out, RANK)).astype(np.float32)
        body = update_body(self.silo, number, join(self.silo, number), sent, examples=self.examples)
        answer = put(self.silo, number, body)
        assert answer.status_code == 201, answer.text
        return sent

    def acts(self) -> dict[str, Floats]:
        """Return the sum of all changes of the client's base model."""
        return {module: values + product(self.adapter, module) for module, values in self.base.items()}


def product(adapter: dict[str, NDArray[np.float32]], module: str) -> Floats:
    if f"{module}.A" not in adapter:
        return np.zeros(MODULES[module])
    return adapter[f"{module}.B"].astype(np.float64) @ adapter[f"{module}.A"].astype(np.float64)


def start_federation(served: Served, strategy: str) -> str:
    federation_id = served.federation(strategy={"name": strategy}, **PLAN)
    served.start_federation(federation_id)
    return federation_id


def enrol(
    served: Served, federation_id: str, name: str, base_model: str = "tiny-s-aaaaaaaaaaaa", **facts: Any
) -> Client:
    return Client(served.enrol(federation_id, name, base_model=base_model, layers=2, shapes=SHAPES), **facts)


def assert_same(left: dict[str, Floats], right: dict[str, Floats]) -> None:
    for module, values in left.items():
        np.testing.assert_allclose(values, right[module], rtol=1e-5, atol=1e-5)


def play_round(served: Served, number: int, *clients: Client) -> list[dict[str, NDArray[np.float32]]]:
    """Deliver for clients in a round; return their updates."""
    for client in clients:
        client.pull(number)
    sent = [client.push(number, 10 * number + place) for place, client in enumerate(clients)]
    wait_for(served, clients[0].silo.federation_id, number, "published")
    return sent


@pytest.mark.parametrize("strategy", ["fedex_lora", "flora"])
def test_base_deltas_give_clients_the_mean_of_updates(coordinator: Served, strategy: str) -> None:
    """Those who were there, who missed a round, and who is new."""
    federation_id = start_federation(coordinator, strategy)
    first = enrol(coordinator, federation_id, "one", examples=30)
    two, away = (enrol(coordinator, federation_id, name) for name in ("two", "away"))
    play_round(coordinator, 1, first, two, away)
    for client in (first, two):
        client.pull(2)
    before = dict(first.base)
    sent = play_round(coordinator, 2, first, two)
    new = enrol(coordinator, federation_id, "new")
    for client in (first, two, away, new):
        client.pull(3)
        assert_same(client.acts(), first.acts())
    assert (first.fold_from, two.fold_from, away.fold_from, new.fold_from) == (2, 2, 1, 1)
    assert all(rank <= min(MODULES[module]) for module, rank in away.ranks.items())
    shares = (0.75, 0.25) if strategy == "flora" else (0.5, 0.5)
    for module, values in first.acts().items():
        change = sum(share * product(adapter, module) for share, adapter in zip(shares, sent, strict=True))
        np.testing.assert_allclose(values, before[module] + change, rtol=1e-5, atol=1e-5)
    assert bool(first.adapter) is (strategy == "fedex_lora")
    assert set(first.ranks.values()) == {RANK if strategy == "fedex_lora" else 2 * RANK}
    play_round(coordinator, 3, first, two, away, new)
    for client in (first, two, away, new):
        client.pull(4)
        assert_same(client.acts(), first.acts())
    assert (first.fold_from, two.fold_from, away.fold_from, new.fold_from) == (3, 3, 3, 3)


@pytest.mark.parametrize("strategy", ["fedex_lora", "flora"])
def test_base_deltas_contain_only_their_base_models_updates(coordinator: Served, strategy: str) -> None:
    federation_id = start_federation(coordinator, strategy)
    models = ["tiny-s-aaaaaaaaaaaa", "tiny-s-aaaaaaaaaaaa", "tiny-l-bbbbbbbbbbbb"]
    clients = [enrol(coordinator, federation_id, f"c{i}", model) for i, model in enumerate(models)]
    for client in clients:
        client.pull(1)
    sent = [client.push(1, i) for i, client in enumerate(clients)]
    wait_for(coordinator, federation_id, 1, "published")
    stranger = enrol(coordinator, federation_id, "stranger", "tiny-m-cccccccccccc")
    for client in (*clients, stranger):
        client.pull(2)
    assert_same(clients[2].acts(), {module: product(sent[2], module) for module in MODULES})
    both = {module: (product(sent[0], module) + product(sent[1], module)) / 2 for module in MODULES}
    for client in clients[:2]:
        assert_same(client.acts(), both)
    assert stranger.fold_from is None
    assert not any(values.any() for values in stranger.acts().values())


def test_pruning_keeps_the_newest_fold_per_base_model(coordinator: Served) -> None:
    federation_id = start_federation(coordinator, "fedex_lora")
    clients = [enrol(coordinator, federation_id, f"c{i}") for i in range(2)]
    for number in (1, 2):
        play_round(coordinator, number, *clients)
    while retention.prune_rounds(coordinator.database, 1):
        pass
    with coordinator.database.read() as session:
        pruned = select(FoldRow.payload_id.is_(None)).where(FoldRow.federation_id == federation_id)
        assert list(session.scalars(pruned.order_by(FoldRow.round_number))) == [True, False]
    new = enrol(coordinator, federation_id, "new")
    for client in (*clients, new):
        client.pull(3)
        assert_same(client.acts(), clients[0].acts())
