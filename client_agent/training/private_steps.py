"""Differentially private steps (DP-SGD): clipped gradients of single examples, and noise.

Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016, arXiv 1607.00133), algorithm 1: each
example is in a step's sample by itself with probability m/n, the gradient of its mean loss is clipped to an
L2 norm of `clip` over all trained tensors, Gaussian noise is added to the sum once, and the sum is divided by
m. What an optimiser makes of that, its momentum over rounds included, is post-processing.

An example is a batch of its own, so that its gradient does not depend on other examples of the sample, even
in rounding or through the random numbers of dropout; `batched_gradients` has the conditions under which one
batch of several does the same. The sum is in integers, as that of private sketches
(`privacy.release`), because the low bits of floating-point noise would reveal it (Mironov 2012).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import nan
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from client_agent.privacy.release import STEPS, Mechanism, on_grid, sample_records
from client_agent.privacy.step_noise import discrete_gaussians
from client_agent.privacy.training import sigma_of
from client_agent.training.batched_gradients import BatchedGradients, gradients_of_texts
from client_agent.training.gradient_checks import require_gradients

Record = tuple[TokenizedText, ...]
"""The texts of one training example: one, or the parts of a long raw text."""


class Payments(Protocol):
    """What pays for the steps of a round."""

    def pay(self, steps: int) -> None:
        """Pay for steps that are still to be begun."""

    def begin_step(self) -> None:
        """Count a step as begun, durably."""


class Gradient(Protocol):
    """Adds the gradient of a text's mean loss to the parameters; returns the loss, in nats per token."""

    def __call__(self, base: BaseModel, text: TokenizedText) -> float: ...


@dataclass(frozen=True, slots=True)
class PrivateSteps:
    """How the steps of a round are made private.

    Attributes:
        records: the different training examples; one is drawn as a whole, and a random text of it is used.
        mechanism: the sample, the clip and the noise of each step.
        payments: the silo's ledger of this round.
        batched: computes gradients of several texts at once; None = each is a batch of its own.
    """

    records: Sequence[Record]
    mechanism: Mechanism
    payments: Payments
    batched: BatchedGradients | None = None

    @property
    def facts(self) -> list[float]:
        """Return what a checkpoint of this training depends on."""
        mechanism = self.mechanism
        return [mechanism.sampled, mechanism.records, mechanism.noise_multiplier, mechanism.clip]

    def samples(self, steps: int) -> Iterator[list[list[TokenizedText]]]:
        """Yield the sample of each of `steps` steps, a list of batches of one text; each is paid for first.

        Raises:
            TrainingBudgetSpent: the steps would exceed the silo's budget.
            LedgerDamaged: the spent budget is not known.
        """
        self.payments.pay(steps)
        for _ in range(steps):
            # Before the draw: a crash after it must not make this sample free.
            self.payments.begin_step()
            # From the system's generator: a known seed would tell who was drawn, and undo the amplification.
            drawn = sample_records(self.mechanism, secrets.randbelow)
            yield [[secrets.choice(self.records[number])] for number in drawn]

    def noisy_gradient(
        self,
        base: BaseModel,
        sample: Sequence[Sequence[TokenizedText]],
        parameters: Mapping[str, nn.Parameter],
        gradient: Gradient,
    ) -> float:
        """Set the gradient of the parameters to the noisy mean of a sample's clipped gradients.

        Return the mean loss of the sample, which stays in the silo; not a number for an empty sample.

        Raises:
            MissingGradient: a parameter has no gradient after a backward pass.
        """
        total = np.zeros(sum(parameter.numel() for parameter in parameters.values()), np.int64)
        losses: list[float] = []
        texts = [text for (text,) in sample]
        with _without_shared_prefix(base):
            for loss, vector in self._gradients(base, texts, parameters, gradient):
                losses.append(loss)
                # Each example is clipped by itself.
                total += on_grid(vector, self.mechanism.clip)
        # Also for an empty sample, which must look like any other.
        total += discrete_gaussians(total.size, sigma_of(self.mechanism))
        # What the rest of the step draws depends on neither the sample nor its dropout.
        _seed(secrets.randbits(63))
        # By the expected size of a sample: the actual one is a secret.
        step = self.mechanism.clip / STEPS / self.mechanism.sampled
        _assign(parameters, total.astype(np.float64) * step)
        return float(np.mean(losses)) if losses else nan

    def _gradients(
        self,
        base: BaseModel,
        texts: Sequence[TokenizedText],
        parameters: Mapping[str, nn.Parameter],
        gradient: Gradient,
    ) -> Iterator[tuple[float, NDArray[np.float32]]]:
        """Yield the loss and the gradient of each text, in any order."""
        if self.batched is not None:
            texts = list(texts)
            # One more text at a random place moves one other to the end, and none otherwise.
            secrets.SystemRandom().shuffle(texts)
            values = sum(parameter.numel() for parameter in parameters.values())
            batches, texts = self.batched.divided(base, values, texts)
            for shape, members in batches:
                _seed(secrets.randbits(63))
                yield from gradients_of_texts(base, parameters, shape, members)
        for text in texts:
            for parameter in parameters.values():
                parameter.grad = None
            # So that the dropout of an example does not depend on how many were drawn before it.
            _seed(secrets.randbits(63))
            loss = gradient(base, text)
            yield loss, _flat(parameters)


def _without_shared_prefix(base: BaseModel) -> AbstractContextManager[None]:
    """Return a context in which nothing is read that a GPU has computed for several texts together."""
    # The stored prefix of a text has bits that depend on the texts beside it when it was computed.
    return base.prefix.set_aside() if base.device.type == "cuda" else nullcontext()


def _seed(seed: int) -> None:
    """Seed what a dropout draws from; `torch.manual_seed` notes each of its calls for devices never used."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


def _flat(parameters: Mapping[str, nn.Parameter]) -> NDArray[np.float32]:
    """Return the gradients of all parameters as one vector."""
    require_gradients(parameters)
    flat = [cast(Tensor, parameter.grad).reshape(-1).float().cpu() for parameter in parameters.values()]
    return torch.cat(flat).numpy()


def _assign(parameters: Mapping[str, nn.Parameter], values: NDArray[np.float64]) -> None:
    """Set the gradients of all parameters from one vector."""
    start = 0
    for parameter in parameters.values():
        part = torch.from_numpy(values[start : start + parameter.numel()])
        parameter.grad = part.view(parameter.shape).to(parameter.device, parameter.dtype)
        start += parameter.numel()
