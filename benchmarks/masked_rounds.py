"""Rounds of a federation whose clients train, send and mix the modules of a mask, without HTTP."""

from __future__ import annotations

import copy
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import inf
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
from client_agent.model.examples import Example
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


@dataclass(frozen=True, slots=True)
class Setting:
    """The silos of one seed, the plan, and the relevance of every silo for every other, (n, n)."""

    silos: dict[str, Silo]
    plan: FederationPlan
    relevance: NDArray[np.float64]
    rate: float
    seed: int


@dataclass(slots=True)
class Client:
    """A silo in a run: its next start, its last update, and the round in which it sent each module."""

    name: str
    silo: Silo
    state: Arrays
    last_update: Arrays
    controller: Controller
    optimiser: Arrays = field(default_factory=dict)
    round_sent: dict[str, int] = field(default_factory=dict)
    best: Arrays = field(default_factory=dict)
    best_loss: float = inf


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The mean test loss of a run's best and last trained states, bytes of updates, seconds of training."""

    best: float
    last: float
    bytes: int
    seconds: float


def run(setting: Setting, way: str, progress: Progress, bar: TaskID) -> RunFigures:
    """Run all rounds of one way."""
    clients = [_client(name, silo, setting) for name, silo in setting.silos.items()]
    total, encoded_bytes, seconds = setting.plan.rounds.total, 0, 0.0
    last: list[float] = []
    for number in range(1, total + 1):
        for client in clients:
            mask = _mask(way, client, number, setting.seed)
            with _adapter(client.silo, setting.plan) as adapter:
                seconds += _train(client, adapter, mask, setting, number, measures=way == "salient")
                _keep_best(client, setting.plan)
                if number == total:
                    last.append(_loss(client.silo, client.silo.data.test, setting.plan))
            encoded_bytes += _send(client, mask, way, number, setting.seed)
        _mix(clients, setting.relevance, number)
        progress.advance(bar)
    best = [_best_test_loss(client, setting.plan) for client in clients]
    return RunFigures(statistics.mean(best), statistics.mean(last), encoded_bytes, seconds)


def _client(name: str, silo: Silo, setting: Setting) -> Client:
    """Return a client before its first round; compute the layers below its adapter, which are not timed."""
    with _adapter(silo, setting.plan) as adapter:
        state = adapter.state()
        _loss(silo, silo.data.train, setting.plan)
    modules = sorted({module_of(tensor) for tensor in state})
    return Client(name, silo, state, copy.deepcopy(state), Controller(modules, KEEP))


def _adapter(silo: Silo, plan: FederationPlan) -> MaskedLora:
    return inject_masked(silo.base, plan.adapter, seed=plan.training.seed)


def _mask(way: str, client: Client, number: int, seed: int) -> Mask:
    modules = client.controller.modules
    match way:
        case "salient":
            return client.controller.choose(number)
        case "random":
            return random_mask(modules, KEEP, number, f"{seed}:{client.name}")
        case "last":
            return last_layers(modules, KEEP, number)
        case _:
            return frozenset(modules)


def _train(
    client: Client, adapter: MaskedLora, mask: Mask, setting: Setting, number: int, *, measures: bool
) -> float:
    """Train the modules of a mask from the client's state; return the processor time, in seconds.

    `measures`: the controller observes the salience of the modules.
    """
    plan, silo = setting.plan, client.silo
    adapter.load(client.state)
    adapter.train_only(mask)
    texts = silo.encoded(silo.data.train, plan.training.max_length)
    earlier = {key: value for key, value in client.optimiser.items() if module_of(module_of(key)) in mask}
    salience = Salience()
    began = time.process_time()
    with salience.measured(adapter.named_parameters()) if measures else nullcontext():
        outcome = train(
            silo.base,
            adapter,
            texts,
            plan.training,
            learning_rate=setting.rate,
            seed=plan.training.seed,
            round_number=number,
            total_rounds=plan.rounds.total,
            optimiser_state=earlier,
        )
    seconds = time.process_time() - began
    client.optimiser |= outcome.optimiser_state
    client.controller.observe(salience.levels())
    client.state = adapter.state()
    return seconds


def _keep_best(client: Client, plan: FederationPlan) -> None:
    """Keep the trained state if its validation loss is the least so far; the model has the adapter."""
    loss = _loss(client.silo, client.silo.data.validation, plan)
    if loss < client.best_loss:
        client.best, client.best_loss = copy.deepcopy(client.state), loss


def _best_test_loss(client: Client, plan: FederationPlan) -> float:
    with _adapter(client.silo, plan) as adapter:
        adapter.load(client.best)
        return _loss(client.silo, client.silo.data.test, plan)


def _loss(silo: Silo, examples: tuple[Example, ...], plan: FederationPlan) -> float:
    return mean_loss(silo.base, silo.encoded(examples, plan.training.max_length))


def _send(client: Client, mask: Mask, way: str, number: int, seed: int) -> int:
    """Encode the modules of a mask as differences to the last update; return the bytes."""
    recipe: Recipe = NAMED["int4_own_last"]
    if way == "largest" and number > 1:
        recipe = recipe.model_copy(update={"density": DENSITY})
    differences = {
        name: client.state[name] - values
        for name, values in client.last_update.items()
        if module_of(name) in mask
    }
    coded = encode(differences, recipe, "layer masks", seed, client.name, number)
    layout = {name: values.shape for name, values in sorted(differences.items())}
    for name, decoded in decode(coded, layout, recipe):
        client.last_update[name] = client.last_update[name] + decoded
    client.round_sent |= dict.fromkeys(mask, number)
    return sum(stream.nbytes for stream in coded.tensors.values())


def _mix(clients: list[Client], relevance: NDArray[np.float64], number: int) -> None:
    """Set each client's state to a mixture, each module over the clients that sent it lately."""
    for receiver, weights in zip(clients, relevance, strict=True):
        mixed: Arrays = {}
        for name in receiver.state:
            ages = [number - client.round_sent.get(module_of(name), -MAX_AGE) for client in clients]
            shares = [w * 0.5**age * (age < MAX_AGE) for w, age in zip(weights, ages, strict=True)]
            if total := sum(shares):
                parts = (
                    s / total * client.last_update[name] for s, client in zip(shares, clients, strict=True)
                )
                mixed[name] = np.sum(list(parts), axis=0, dtype=np.float32)
        receiver.state = receiver.state | mixed
