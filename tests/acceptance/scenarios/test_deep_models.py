"""Adapters of models with 80 and 126 layers, in real shapes, in two rounds over HTTP."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from client_agent.rounds.served_weights import read_weights
from client_agent.storage.base_delta import BaseDelta, apply_weights, read_served
from client_agent.transport.client import CoordinatorApi
from schemas.maths.adapter import Layout, layer_module_name, lora_layout
from schemas.messages.federations import ALL_ROLES, Role
from schemas.messages.recipes import NAMED, SentRecipe
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import unpack
from schemas.wire.header import HEADER_LIMIT
from schemas.wire.streams import bound, decode, stream_slots
from tests.scene.coordinator import Served, Silo, start
from tests.scene.rounds import coded_body, update_body
from tests.scene.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

Values = NDArray[np.float32]
RECIPE = NAMED["int8_own_last"]
SMALL = np.float32(0.01)


@dataclass(frozen=True)
class Model:
    """The layers of a public model."""

    layers: int
    hidden: int
    kv: int
    ffn: int

    @property
    def shapes(self) -> dict[Role, tuple[int, int]]:
        h, kv, ffn = self.hidden, self.kv, self.ffn
        return {
            "q": (h, h),
            "k": (kv, h),
            "v": (kv, h),
            "o": (h, h),
            "gate": (ffn, h),
            "up": (ffn, h),
            "down": (h, ffn),
        }

    @property
    def layout(self) -> Layout:
        return lora_layout(self.layers, self.shapes, 1)

    @property
    def sampled(self) -> list[str]:
        """The modules whose values a test compares: one of each role, from the first layer to the last."""
        layers = np.linspace(0, self.layers - 1, len(ALL_ROLES)).astype(int)
        return [layer_module_name(layer, role) for layer, role in zip(layers, ALL_ROLES, strict=True)]


MODELS = {"70B": Model(80, 8192, 1024, 28672), "405B": Model(126, 16384, 1024, 53248)}


@dataclass
class Client:
    """A silo of a deep model, whose updates are random."""

    silo: Silo
    api: CoordinatorApi
    model: Model
    seed: int
    base: BaseDelta = field(default_factory=lambda: BaseDelta(1, {}))
    digest: str = ""

    def join(self, number: int) -> str:
        return self.api.join(self.silo.federation_id, number, None).weights.digest

    def body(self, number: int) -> bytes:
        return self.api.weights(self.silo.federation_id, number).body

    def update(self, number: int) -> dict[str, Values]:
        rng = np.random.default_rng([self.seed, number])
        layout = self.model.layout
        return {name: SMALL * rng.standard_normal(shape, np.float32) for name, shape in layout.items()}

    def push(self, number: int, body: bytes) -> None:
        self.digest = self.api.push_update(self.silo.federation_id, number, body).digest

    def push_dense(self, number: int, base: str) -> None:
        self.push(number, update_body(self.silo, number, base, self.update(number)))

    def push_coded(self, number: int, base: str) -> None:
        """Push the difference to the last update, in 8 bits."""
        expected, last = self.update(number), self.update(number - 1)
        body, _ = coded_body(self.silo, number, base, expected, RECIPE, against=self.digest, held=last)
        self.push(number, body)

    def pull_coded(self, number: int, last: Mapping[str, Values]) -> dict[str, Values]:
        """Download weights as the difference to the last update, in 8 bits."""
        body = self.api.weights(self.silo.federation_id, number, "int8_own_last")
        assert body.proof
        limit = bound(self.model.layout, RECIPE) + 2**20
        with unpack(
            body.body, encoding="zstd", expected={}, max_bytes=limit, coded=stream_slots()
        ) as envelope:
            recipe = SentRecipe.model_validate(envelope.manifest(WeightsManifest).recipe)
            assert recipe.against == self.digest
            decoded = decode(envelope, self.model.layout, RECIPE)
            return {name: last[name] + delta for name, delta in decoded if name in self.picked}

    @property
    def picked(self) -> set[str]:
        return {f"{module}.{factor}" for module in self.model.sampled for factor in "AB"}


Enrol = Callable[[str, Model], list[Client]]


@pytest.fixture
def served(sqlite_template: Path, tmp_path: Path) -> Iterator[Served]:
    """A coordinator whose database of gigabytes is on disk, and deleted after the test."""
    database = tmp_path / "tessera.db"
    shutil.copy(sqlite_template, database)
    coordinator = start(f"sqlite:///{database}", tick_seconds=0.05, retry_seconds=0.1, polls_per_second=20)
    yield coordinator
    coordinator.stop()
    shutil.rmtree(tmp_path)


@pytest.fixture
def enrol(served: Served) -> Iterator[Enrol]:
    """Start a federation and enrol two clients of a deep model."""
    with ExitStack() as stack:

        def begin(strategy: str, model: Model) -> list[Client]:
            federation_id = served.federation(
                strategy={"name": strategy},
                adapter={"kind": "lora", "rank": 1},
                rounds={"total": 2, "min_clients": 2, "collect_seconds": 3600},
                signature={"dim": 4},
                wire={"recipe": "int8_own_last"} if strategy == "fedavg" else {"recipe": "dense"},
                limits={"max_update_bytes": 2**28},
            )
            served.start_federation(federation_id)
            clients = []
            for seed, name in enumerate(("aster", "birch")):
                silo = served.enrol(federation_id, name, layers=model.layers, shapes=dict(model.shapes))
                api = CoordinatorApi(served.url, key=silo.key, deadline_seconds=600)
                clients.append(Client(silo, stack.enter_context(api), model, seed))
            return clients

        yield begin


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


def acts(a: Values, b: Values) -> Values:
    """Apply B A to three inputs, (d_out, 3); the product itself would have a billion values."""
    inputs = np.random.default_rng(0).standard_normal((a.shape[1], 3), np.float32)
    return np.asarray(b @ (a @ inputs))


def acting(factors: Mapping[str, Values], module: str) -> Values:
    return acts(factors[f"{module}.A"], factors[f"{module}.B"])


def close(values: Values, expected: Values, tolerance: float = 1e-4) -> None:
    assert np.abs(values - expected).max() <= tolerance * np.abs(expected).max()


def wait_until_published(client: Client, number: int) -> None:
    """Wait as a client does, which tries again while the database is busy with gigabytes."""
    federation_id = client.silo.federation_id
    wait_until(
        lambda: client.api.round_view(federation_id, number).state == "published", seconds=800, pause=0.5
    )


def header_of(body: bytes) -> int:
    return int.from_bytes(body[:8], "little")


def test_lora_of_a_deep_model_is_averaged(enrol: Enrol, model: Model) -> None:
    clients = enrol("fedavg", model)
    for number in (1, 2):
        for client in clients:
            base = client.join(number)
            client.push_dense(number, base) if number == 1 else client.push_coded(number, base)
        wait_until_published(clients[0], number)
    last = [client.update(2) for client in clients]
    body = clients[0].body(3)
    assert 2**16 < header_of(body) < HEADER_LIMIT
    weights = read_weights(body, model.layout)
    for name in clients[0].picked:
        close(weights[name], (last[0][name] + last[1][name]) / 2, 0.02)  # updates were sent in 8 bits
    coded = clients[1].pull_coded(3, last[1])
    for name, values in coded.items():
        close(values, weights[name], 0.05)


@pytest.mark.parametrize("strategy", ["fedex_lora", "flora"])
def test_base_deltas_of_a_deep_model_are_exact(enrol: Enrol, model: Model, strategy: str) -> None:
    clients = enrol(strategy, model)
    expected = {module: np.float32(0) for module in model.sampled}
    adapters: list[Mapping[str, Values]] = []
    for number in (1, 2):
        trained: dict[str, Values] = {}
        for client in clients:
            client.push_dense(number, client.join(number))
            update = client.update(number)
            for module in model.sampled:
                trained[module] = trained.get(module, np.float32(0)) + acting(update, module) / 2
        wait_until_published(clients[0], number)
        adapters.clear()
        for client in clients:
            if number == 1:
                client.join(2)
            body = client.body(number + 1)
            assert 2**16 < header_of(body) < HEADER_LIMIT
            weights = read_served(body, model.layout)
            client.base = apply_weights(client.base, weights)
            adapters.append({name: weights.adapter[name] for name in client.picked})
        # What is served of A and B is part of the next update; the remaining change joins the base model.
        for module in model.sampled:
            expected[module] = expected[module] + trained[module] - acting(adapters[0], module)
    for client, adapter in zip(clients, adapters, strict=True):
        for module in model.sampled:
            delta = client.base.added[module]
            of_adapter = acting(adapter, module)
            close(acts(delta.A, delta.B) + of_adapter, expected[module] + of_adapter)
