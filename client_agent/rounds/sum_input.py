"""A client's input of a sum: what it learnt in the round, clipped, weighed and rounded once, as one file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from client_agent.adapters.base import State
from client_agent.storage.tensor_metadata import metadata_of, save_tensors
from schemas.maths.adapter import Layout
from schemas.maths.start import from_start
from schemas.messages.federations import FederationPlan
from schemas.messages.scores import LOSS, Scores
from schemas.messages.secure_sum import ReadyRequest, Segment
from schemas.messages.sum_plan import SecureSumPlan
from schemas.secure_sum.encoding import CLIP_UNIT, clamp_weight, clipped_share, concatenate, quantise
from schemas.secure_sum.segments import (
    SCORES,
    SUMMED_SCORES,
    WEIGHT,
    segments_of,
    values_digest,
    values_of_factor,
)
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_READY = "ready"


@dataclass(frozen=True, slots=True)
class SumInput:
    """The encoded input: integers (D,) in the order of the segments, and what `ready` says of them.

    `digest` is that of the file: a session's keys are made for one input.
    """

    values: NDArray[np.int32]
    digest: str
    ready: ReadyRequest

    @classmethod
    def from_bytes(cls, content: bytes, segments: tuple[Segment, ...]) -> SumInput:
        """Read the file of an input.

        Raises:
            KeyError: it lacks a segment.
        """
        tensors = safetensors.numpy.load(content)
        parts = [tensors[segment.name].astype(np.int32) for segment in segments]
        ready = ReadyRequest.model_validate_json(metadata_of(content)[_READY])
        return cls(concatenate(parts), digest_of(content), ready)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a client has after its training: the served and the trained values, scores and examples.

    `base` is the digest of the served weights, head included.
    """

    plan: FederationPlan
    summed: SecureSumPlan
    layout: Layout
    served: State
    trained: State
    scores: Scores
    examples: int
    base: str

    def change(self) -> Mapping[str, NDArray[np.float32]]:
        """Return trained - served per tensor, scaled down to `limits.clip_norm`.

        Served zeros that stand for the start are the start.
        """
        seed, limit = self.plan.training.seed, self.plan.limits.clip_norm
        change = {
            name: self.trained[name] - from_start(name, self.served.__getitem__, seed, self.layout)
            for name in self.layout
        }
        norm = float(np.sqrt(sum(float(np.square(x, dtype=np.float64).sum()) for x in change.values())))
        if limit is None or norm <= limit:
            return change
        return {name: values * np.float32(limit / norm) for name, values in change.items()}

    def encode(self, round_number: int) -> bytes:
        """Return the file of the input; every call rounds anew, so that it is made once per round.

        Raises:
            SecureSumError: a value is not finite.
        """
        bits, weight = self.summed.bits, clamp_weight(self.examples, self.summed.weigh_up_to)
        change = self.change()
        tensors: dict[str, NDArray[np.signedinteger]] = {}
        clipped, learnt, limit = 0.0, 0, 0.0
        for segment in segments_of(self.plan, self.layout):
            own_weight = 1.0
            match segment.name:
                case name if name == WEIGHT:
                    values = np.array([weight], np.float32)
                case name if name == SCORES:
                    values = np.array(self._losses(), np.float32)
                case factor:
                    values, own_weight = values_of_factor(change, self.layout, factor), weight
                    clipped += clipped_share(values, segment.clip, weight=weight) * len(values)
                    learnt, limit = learnt + len(values), segment.clip * CLIP_UNIT
            encoded = quantise(values, segment.clip, bits, weight=own_weight)
            tensors[segment.name] = encoded.astype(f"<i{bits // 8}")
        log.info(
            "round %d: %d values encoded in %d bits, weight %.3f; %.2f %% of them exceeded the clip of %.3g",
            *(round_number, learnt, bits, weight, 100 * clipped / max(1, learnt), limit),
        )
        ready = ReadyRequest(base=self.base, values=values_digest(self.served, self.layout))
        return save_tensors(tensors, {_READY: ready.model_dump_json(), "clipped": json.dumps(clipped)})

    def _losses(self) -> list[float]:
        sides = {"served": self.scores.served, "trained": self.scores.trained}
        return [sides[side][LOSS].value for side in SUMMED_SCORES]
