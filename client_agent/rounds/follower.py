"""A process of torchrun besides rank 0: compute gradients of the texts that rank 0 sends, until it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from client_agent.adapters.base import Adapter, adapter_tensors
from client_agent.adapters.inject import inject
from client_agent.model.gguf import model_folder
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from client_agent.rounds.strategy import load_strategy
from client_agent.settings import AgentSettings
from client_agent.training.loop import TrainingOptions, gradients_of, training_mode
from client_agent.training.ranks import Connection, frames_of_message, trainable
from client_agent.training.silo import device_named, load_own_model
from schemas.maths.seeded_random import words
from schemas.messages.federations import AdapterPlan, StrategyPlan, TrainingPlan


def follow(settings: AgentSettings) -> None:
    """Join the processes of torchrun, and follow rank 0; the model is loaded when it is first needed.

    Rank 0 decides when to stop, so signals are ignored once it is there.

    Raises:
        SettingsUnusable, AgentError: see `load_own_model`.
    """
    device = device_named(settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    connection = Connection(device)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        follow_orders(
            connection,
            lambda: load_own_model(settings, model_folder(settings.model, settings.folder), device),
        )
    finally:
        connection.close()


def _model(settings: AgentSettings, device: torch.device) -> BaseModel:
    return load_own_model(settings, model_folder(settings.model, settings.folder), device)


def follow_orders(connection: Connection, load: Callable[[], BaseModel]) -> None:
    """Do what rank 0 says, until it says that this is the end."""
    base: BaseModel | None = None
    adapter: Adapter | None = None
    training: dict[str, Any] = {}
    while True:
        order = connection.message()
        kind = order["order"]
        if kind == "end":
            return
        # Loaded late: rank 0 may refuse the plan before any training.
        if base is None:
            base = load()
        if kind == "open":
            if adapter is not None:  # rank 0 left it by an error, and went on
                adapter.remove()
            adapter = _injected(base, order)
        elif kind == "close" and adapter is not None:
            adapter.remove()
        elif kind == "begin":
            training = order
            tensors = adapter_tensors(base)
            # Tensors travel by position in this order: other names would be mixed up without an error.
            if sorted(tensors) != order["tensors"]:
                raise RuntimeError(
                    "the adapters of the processes differ: use one version of Tessera, and one model"
                )
            connection.spread([tensors[name] for name in sorted(tensors)])
        elif kind == "step":
            _step(connection, base, training, order)


def _step(connection: Connection, base: BaseModel, training: dict[str, Any], order: dict[str, Any]) -> None:
    parameters = trainable(adapter_tensors(base))
    connection.spread(parameters)
    begin = sum(order["counts"][: connection.rank])
    batches = [
        [TokenizedText(tuple(ids), tuple(answer), ()) for ids, answer in texts]
        for texts in order["texts"][begin : begin + order["counts"][connection.rank]]
    ]
    plan, options = TrainingPlan.model_validate(training["plan"]), TrainingOptions(**training["options"])
    # Each rank has its own dropout, and the same again when a step is repeated.
    facts = ("training", training["seed"], training["round"], order["number"], connection.rank)
    with training_mode(base, plan, int(words(1, *facts)[0] >> np.uint64(1))):
        loss = gradients_of(base, batches, order["answers"], options) if batches else 0.0
    connection.add_up(parameters, loss)
    for parameter in parameters:
        # Gradients add up otherwise: the optimiser, which resets them, runs in rank 0 only.
        parameter.grad = None


def _injected(base: BaseModel, order: dict[str, Any]) -> Adapter:
    named = StrategyPlan.model_validate(order["strategy"])
    strategy = load_strategy(named.name, named.options)
    plan = AdapterPlan.model_validate(order["plan"])
    frames, gated, seed = frames_of_message(order), order["gated"], order["seed"]
    adapter = inject(base, plan, frames, gated=gated, seed=seed)
    for part in strategy.parts:
        adapter = part.wrap(adapter, base)
    return adapter
