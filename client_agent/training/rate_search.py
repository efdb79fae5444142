"""Search a client's learning rate: train from zero at a few rates, and compare the validation losses."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import inf

import numpy as np
from pydantic import BaseModel as Options

from client_agent.adapters.base import Adapter, Penalty
from client_agent.errors import LossNotFinite, Stopped
from client_agent.model.examples import Example, encode_for, encode_some, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import precision_of
from client_agent.model.tokens import digest_of_texts
from client_agent.storage.rate_store import RateSearch as RateSearch
from client_agent.storage.rate_store import RateStore as RateStore
from client_agent.storage.rate_store import TriedRate
from client_agent.training.data import MIN_VALIDATION, SiloData
from client_agent.training.evaluate import mean_loss
from client_agent.training.loop import DEFAULT_OPTIONS, TrainingOptions, train
from client_agent.training.progress import TrainingProgress
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan, TrainingPlan

log = logging.getLogger(__name__)

GRID = tuple(float(f"{digit}e{power}") for power in range(-5, 0) for digit in (1, 3))
_FIRST = GRID.index(1e-3)
_MOST_RATES = 5
_MOST_STEPS = 20
_SCORED = 64
_FEWEST_EXAMPLES = 64
_SEED = 0  # not the plan's: entries of the store are shared by plans that differ in their seed
_Side = tuple[Sequence[Example], Sequence[Example]]


def search_rate(
    silo: Silo, adapter: Adapter, plan: TrainingPlan, store: RateStore, key: str, *, stop: Callable[[], bool]
) -> float:
    """Return the best rate of `GRID` for an adapter that was just injected; leave the adapter as it was.

    Every rate trains from zero for at most 20 steps, under the plan's schedule without its warm-up. The
    search begins at .001 and .003 and continues in the better direction until the loss rises: three to five
    rates. A finished rate is stored at once, so that a stopped search continues.

    Args:
        key: the search's key in the store, from `search_key`.

    Raises:
        Stopped: `stop` returned true.
        LossNotFinite: training diverged at every rate.
    """
    search = store.read(key)
    if search.chosen is not None:
        return search.chosen
    trials = _Trials(silo, adapter, plan, stop)
    losses = {tried.rate: inf if tried.loss is None else tried.loss for tried in search.tried}
    while (rate := next_rate(losses)) is not None:
        log.info("learning rate: trying %g (rate %d of 3 to %d)", rate, len(losses) + 1, _MOST_RATES)
        losses[rate] = loss = trials.loss_at(rate)
        log.info("learning rate: %g has validation loss %.3f", rate, loss)
        tried = TriedRate(rate=rate, loss=None if loss == inf else loss)
        search = RateSearch(tried=(*search.tried, tried))
        store.write(key, search)
    # Of equal losses the lower rate, which diverges less easily.
    chosen = min(losses, key=lambda rate: (losses[rate], rate))
    if losses[chosen] == inf:
        raise LossNotFinite(
            f"training diverged at every learning rate from {max(losses):g} to {min(losses):g}; load the "
            "base model in float32 or bfloat16, or ask the operator to set training.learning_rate"
        )
    search = search.model_copy(update={"chosen": chosen})
    store.write(key, search)
    log.info("learning rate: chosen: %s", search)
    return chosen


def next_rate(losses: dict[float, float]) -> float | None:
    """Return the rate to try after these losses; None = the search is finished."""
    low, high = GRID[_FIRST], GRID[_FIRST + 1]
    for rate in (low, high):
        if rate not in losses:
            return rate
    # Losses have one minimum over the rate, so that one direction is enough.
    upwards = losses[high] < losses[low]
    path = GRID[_FIRST:] if upwards else GRID[_FIRST + 1 :: -1]
    for before, rate in pairwise(path[1:_MOST_RATES]):
        if rate not in losses:
            return rate
        # After diverged rates the search goes on downwards.
        if losses[rate] >= losses[before] and losses[before] < inf:
            return None
    return None


def search_key(
    base: BaseModel,
    adapter: Adapter,
    data: SiloData,
    plan: AdapterPlan,
    training: TrainingPlan,
    *,
    frames: str,
    options: TrainingOptions = DEFAULT_OPTIONS,
    method: Options | None = None,
) -> str:
    """Return the digest of everything that a search depends on, hexadecimal.

    The names of the trained tensors are part of it: methods that train the same tensors share a search, and
    one that freezes half of them has a search of its own. Their shapes are not: they shrink where a client
    prunes its rank, and the search before its first round serves the whole federation.

    Args:
        plan: the adapter of the client's first round.
        frames: the digest of the adapter's frames.
        method: options of the strategy that change what is trained on, if any.
    """
    facts = {
        "search": 2,  # 1: at a constant rate, whatever the schedule
        "adapter": plan.model_dump(mode="json"),
        "training": training.model_dump(mode="json", exclude={"seed", "anchor_pull"}),
        "model": [base.slug, precision_of(base.model), base.tokenizer.chat_template],
        "frames": frames,
        "tensors": sorted(adapter.named_parameters()),
        "method": method.model_dump(mode="json") if method is not None else None,
        "options": asdict(options),
        "train": digest_of_texts(encode_for(base, data.train, training.max_length)),
        "validation": digest_of_texts(encode_for(base, data.validation, training.max_length)),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def sides(data: SiloData) -> list[_Side]:
    """Return the pairs of examples to train on and to score on.

    One pair with at least 16 validation examples and 64 examples in all. With fewer, the training and
    validation examples together are halved by digest, and each half is trained on and the other one scored: a
    few validation examples decide nothing. A single example is trained on and scored.
    """
    count = len(data.train) + len(data.validation)
    if len(data.validation) >= MIN_VALIDATION and count >= _FEWEST_EXAMPLES:
        return [(data.train, probe_set(data.validation, _SCORED))]
    # Few validation examples decide nothing: both halves are scored, each by a training on the other.
    pool = probe_set([*data.train, *data.validation], count)
    if len(pool) == 1:
        return [(pool, pool)]
    halves = pool[::2], pool[1::2]
    return [(first, second[: _SCORED // 2]) for first, second in (halves, halves[::-1])]


class _Trials:
    """Training runs from zero of one adapter."""

    def __init__(self, silo: Silo, adapter: Adapter, plan: TrainingPlan, stop: Callable[[], bool]) -> None:
        self._silo = silo
        self._adapter = adapter
        # As the rate will be used: one that falls to zero may begin higher than a constant one.
        self._plan = plan.model_copy(update={"steps": min(plan.steps, _MOST_STEPS), "warmup_steps": 0})
        self._stop = stop
        self._state, self._private = adapter.state(), adapter.private_state()
        self._sides = sides(silo.data)

    def loss_at(self, rate: float) -> float:
        """Return the sum of the validation losses at a rate; infinite if training diverges."""
        try:
            return sum(self._trained_loss(rate, *side) for side in self._sides)
        except LossNotFinite:
            return inf
        finally:
            # Also after a divergence: the adapter must be as it was.
            self._adapter.load(self._state)
            self._adapter.load_private(self._private)

    def _trained_loss(self, rate: float, examples: Sequence[Example], held_out: Sequence[Example]) -> float:
        silo, adapter, plan = self._silo, self._adapter, self._plan
        adapter.load_private(self._private)
        adapter.load({name: np.zeros(shape, np.float32) for name, shape in adapter.layout.items()})
        with TrainingProgress(f"learning rate {rate:g}") as progress:
            outcome = train(
                silo.base,
                adapter,
                silo.encoded(examples, plan.max_length),
                plan,
                learning_rate=rate,
                seed=_SEED,
                round_number=1,
                total_rounds=1,
                on_step=progress,
                stop=self._stop,
                penalty=self._penalty(examples),
                options=silo.options,
                ranks=silo.ranks,
            )
        if len(outcome.losses) < plan.steps:
            raise Stopped
        return mean_loss(silo.base, encode_some(silo.base, held_out, _SCORED, plan.max_length))

    def _penalty(self, examples: Sequence[Example]) -> Penalty | None:
        return self._adapter.penalty(examples, self._plan.max_length, 1)
