"""Rounds of a federation whose clients train, send and mix the modules of a mask, without HTTP."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress, TaskID

from benchmarks.mask_controller import (
    Controller,
    Mask,
    MaskedLora,
    Salience,
    inject_masked,
    last_layers,
    module_of,
    random_mask,
)
from client_agent.model.tokens import Encoded
from client_agent.training.evaluate import mean_loss
from client_agent.training.loop import train
from client_agent.training.silo import Silo
from schemas.messages.federations import FederationPlan
from schemas.messages.recipes import NAMED, Recipe
from schemas.wire.streams import decode, encode

WAYS: Final = ("all", "largest", "salient", "random", "last")
KEEP: Final = 0.5
DENSITY: Final = 0.25
MAX_AGE: Final = 3

Arrays = dict[str, NDArray[np.float32]]


@dataclass(slots=True)
class Client:
    """A silo in a run: what it starts from, what it sent last, and when it sent each module."""

    silo: Silo
    state: Arrays
    sent: Arrays
    controller: Controller
    optimiser: Arrays = field(default_factory=dict)
    sent_in: dict[str, int] = field(default_factory=dict)

    def texts(self, plan: FederationPlan) -> tuple[Encoded, ...]:
        return self.silo.encoded(self.silo.data.train, plan.training.max_length)


@dataclass(slots=True)
class Course:
    """The figures of one run: mean test loss after each round, bytes of updates, seconds of training."""

    losses: list[float] = field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The silos of one seed, the plan, and the relevance of every silo for every other, (n, n)."""

    silos: dict[str, Silo]
    plan: FederationPlan
    relevance: NDArray[np.float64]
    rate: float
    seed: int


def run(scene: Scene, way: str, progress: Progress, bar: TaskID) -> Course:
    """Run all rounds of one way."""
    course, total = Course(), scene.plan.rounds.total
    clients = {name: _client(silo, scene) for name, silo in scene.silos.items()}
    for number in range(1, total + 1):
        losses = []
        for name, client in clients.items():
            mask = _mask(way, client.controller, number, f"{scene.seed}:{name}")
            with _adapter(client.silo, scene.plan) as adapter:
                _train(client, adapter, mask, scene, number, course)
                if way == "all" or number == total:
                    losses.append(_test_loss(client.silo, scene.plan))
            course.bytes += _send(client, mask, way, number, scene.seed)
        course.losses += [statistics.mean(losses)] if losses else []
        _mix(list(clients.values()), scene.relevance, number)
        progress.advance(bar)
    return course


def _client(silo: Silo, scene: Scene) -> Client:
    with _adapter(silo, scene.plan) as adapter:
        state = adapter.state()
    modules = sorted({module_of(name) for name in state})
    return Client(silo, state, copy.deepcopy(state), Controller(modules, KEEP))


def _adapter(silo: Silo, plan: FederationPlan) -> MaskedLora:
    return inject_masked(silo.base, plan.adapter, seed=plan.training.seed)


def _mask(way: str, controller: Controller, number: int, key: str) -> Mask:
    match way:
        case "salient":
            return controller.choose(number)
        case "random":
            return random_mask(controller.modules, KEEP, number, key)
        case "last":
            return last_layers(controller.modules, KEEP, number)
        case _:
            return frozenset(controller.modules)


def _train(
    client: Client, adapter: MaskedLora, mask: Mask, scene: Scene, number: int, course: Course
) -> None:
    """Train the modules of a mask from the client's state, with the optimiser's state of earlier rounds."""
    plan, base = scene.plan, client.silo.base
    adapter.load(client.state)
    adapter.train_only(mask)
    known = {key: value for key, value in client.optimiser.items() if module_of(module_of(key)) in mask}
    texts, salience = client.texts(plan), Salience()
    began = time.process_time()
    with salience.measured(adapter.named_parameters()):
        outcome = train(
            *(base, adapter, texts, plan.training),
            learning_rate=scene.rate,
            seed=plan.training.seed,
            round_number=number,
            total_rounds=plan.rounds.total,
            optimiser_state=known,
        )
    course.seconds += time.process_time() - began
    client.optimiser |= outcome.optimiser_state
    client.controller.observe(salience.shares())
    client.state = adapter.state()


def _test_loss(silo: Silo, plan: FederationPlan) -> float:
    return mean_loss(silo.base, silo.encoded(silo.data.test, plan.training.max_length))


def _send(client: Client, mask: Mask, way: str, number: int, seed: int) -> int:
    """Encode the modules of a mask as differences to the last update; return the bytes."""
    recipe: Recipe = NAMED["int4_own_last"]
    if way == "largest" and number > 1:
        recipe = recipe.model_copy(update={"density": DENSITY})
    differences = {
        name: client.state[name] - sent for name, sent in client.sent.items() if module_of(name) in mask
    }
    coded = encode(differences, recipe, "layer masks", seed, number)
    layout = {name: values.shape for name, values in sorted(differences.items())}
    for name, decoded in decode(coded, layout, recipe):
        client.sent[name] = client.sent[name] + decoded
    client.sent_in |= dict.fromkeys(mask, number)
    return sum(stream.nbytes for stream in coded.tensors.values())


def _mix(clients: list[Client], relevance: NDArray[np.float64], number: int) -> None:
    """Set each client's state to the mixture of what was sent, module by module."""
    for receiver, weights in zip(clients, relevance, strict=True):
        mixed: Arrays = {}
        for name in receiver.state:
            ages = [number - client.sent_in.get(module_of(name), -MAX_AGE) for client in clients]
            shares = [w * 0.5**age * (age < MAX_AGE) for w, age in zip(weights, ages, strict=True)]
            if total := sum(shares):
                parts = (s / total * client.sent[name] for s, client in zip(shares, clients, strict=True))
                mixed[name] = np.sum(list(parts), axis=0, dtype=np.float32)
        receiver.state = receiver.state | mixed
