"""A client's input of a sum: its change in the round, clipped, weighed and rounded once, as one file."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from client_agent.storage.tensor_metadata import metadata_of, save_tensors
from schemas.maths.adapter import Layout
from schemas.maths.bank import (
    REJECT,
    SHARED,
    expert_of,
    group_of,
    member_weights,
    specialists_in,
    split_bank_tensor,
)
from schemas.maths.factors import State
from schemas.maths.start import from_start
from schemas.messages.federations import FederationPlan
from schemas.messages.scores import LOSS, Scores
from schemas.messages.secure_sum import CAPABILITY, ReadyRequest, Segment
from schemas.messages.sum_plan import SecureSumPlan
from schemas.messages.updates import BankIndex
from schemas.secure_sum.counts import encoded_counts
from schemas.secure_sum.encoding import CLIP_UNIT, clamp_weight, clipped_share, concatenate, quantise
from schemas.secure_sum.segments import (
    DIFFERENCES,
    NEW,
    RESPONSIBILITY,
    SCORES,
    SUMMED_SCORES,
    WEIGHT,
    bank_digest,
    segments_of,
    values_digest,
    values_of_segment,
)
from schemas.wire.digests import digest_of

log = logging.getLogger(__name__)

_READY = "ready"


@dataclass(frozen=True, slots=True)
class SumInput:
    """The encoded input of a session: integers (D,) in the order of its segments, and what `ready` says.

    `digest` is that of the file: a session's keys are made for one input.
    """

    values: NDArray[np.int32]
    digest: str
    ready: ReadyRequest

    @classmethod
    def from_bytes(cls, content: bytes, segments: Sequence[Segment]) -> SumInput:
        """Read the input of a session's segments from a round's file.

        Raises:
            KeyError: it lacks a segment.
        """
        tensors = safetensors.numpy.load(content)
        parts = [tensors[segment.name].astype(np.int32) for segment in segments]
        ready = ReadyRequest.model_validate_json(metadata_of(content)[_READY])
        return cls(concatenate(parts), digest_of(content), ready)


@dataclass(frozen=True, slots=True)
class _Share:
    """A client's part in each group: `weights` w_ik and `responsibilities` r_ik by expert."""

    weights: Mapping[int, float]
    responsibilities: Mapping[int, float]
    rejects: bool

    @property
    def groups(self) -> frozenset[str]:
        """The groups that the client belongs to."""
        rejecting = {REJECT} if self.rejects else set()
        return frozenset({group_of(expert) for expert in self.weights} | rejecting)

    def weight(self, group: str | None) -> float:
        """Return w_ik in a group, 0 outside of it; None = all members."""
        if group == REJECT:
            return self.weights[SHARED] if self.rejects else 0.0
        return self.weights.get(_expert(group), 0.0)

    def responsibility(self, group: str | None) -> float:
        return self.responsibilities.get(_expert(group), 0.0)


def _unknown_cost() -> float:
    """Draw the cost of an expert for a client that has no probe set, from .5 to 1.

    A large one prevents a merge; a constant would not hide the costs of the other members.
    """
    return 0.5 + int.from_bytes(secrets.token_bytes(4)) / 2**33


def _expert(group: str | None) -> int:
    expert = SHARED if group is None else expert_of(group)
    return -1 if expert is None else expert


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of a client's training: the served and the trained values, scores and examples.

    `base` is the digest of the served weights, head included. `groups` are those whose members are counted
    before the sum. `bank` names the experts beside the common values. `responsibilities` are r_ik of the
    experts that this client trained, and belongs to; None = 1 for each expert whose tensors its training
    changed. `rejects`: no expert fits it. `differences` has what each other expert would cost it, by trained
    expert; {} = it has no probe set.
    """

    plan: FederationPlan
    summed: SecureSumPlan
    layout: Layout
    served: State
    trained: State
    scores: Scores
    examples: int
    base: str
    groups: tuple[str, ...] = ()
    bank: BankIndex | None = None
    responsibilities: Mapping[int, float] | None = None
    rejects: bool = False
    differences: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def change(self) -> Mapping[str, NDArray[np.float32]]:
        """Return trained - served per tensor, scaled down to `limits.clip_norm`.

        Served zeros that stand for the start are the start.
        """
        seed, limit = self.plan.training.seed, self.plan.limits.clip_norm
        change = {
            name: self.trained[name] - from_start(name, self.served.__getitem__, seed, self.layout)
            for name in self.layout
        }
        # In float64: squares of millions of values.
        norm = float(np.sqrt(sum(float(np.square(x, dtype=np.float64).sum()) for x in change.values())))
        if limit is None or norm <= limit:
            return change
        return {name: values * np.float32(limit / norm) for name, values in change.items()}

    def encode(self, round_number: int) -> bytes:
        """Return the file of the input; every call rounds at random again, so that it is made once per round.

        It has the input of the counts, and that of all segments which the sum after them may have.

        Raises:
            SecureSumError: a value is not finite.
        """
        bits, change = self.summed.bits, self.change()
        share = self._share(change)
        counts = encoded_counts(self.groups, share.groups & set(self.groups), bits)
        tensors: dict[str, NDArray[np.signedinteger]] = {
            group: counts[[place]].astype(f"<i{bits // 8}") for place, group in enumerate(self.groups)
        }
        clipped, learnt, limit = 0.0, 0, 0.0
        for segment in segments_of(self.plan, self.layout, self.groups):
            values, weight = self._numbers(segment, share), 1.0
            if values is None:
                source = segment.name.removeprefix(f"{NEW}.")
                values, weight = values_of_segment(change, self.layout, source), share.weight(segment.group)
                clipped += clipped_share(values, segment.clip, weight=weight) * len(values)
                learnt, limit = learnt + len(values), segment.clip * CLIP_UNIT
            # Rounded at random, without bias. A second rounding of the same values would reveal some of what
            # the first hid.
            encoded = quantise(values, segment.clip, bits, weight=weight)
            tensors[segment.name] = encoded.astype(f"<i{bits // 8}")
        log.info(
            "round %d: %d values encoded in %d bits, weight %.3f; %.2f %% of them exceeded the clip of %.3g",
            round_number,
            learnt,
            bits,
            share.weight(None),
            100 * clipped / max(1, learnt),
            limit,
        )
        common = {name: shape for name, shape in self.layout.items() if split_bank_tensor(name) is None}
        # Members must start from equal values: changes from different starts cannot be summed.
        start_digest = bank_digest(values_digest(self.served, common), self.bank)
        ready = ReadyRequest(base=self.base, values=start_digest, format=CAPABILITY)
        return save_tensors(tensors, {_READY: ready.model_dump_json(), "clipped": json.dumps(clipped)})

    def _share(self, change: Mapping[str, NDArray[np.float32]]) -> _Share:
        weight = clamp_weight(self.examples, self.summed.weigh_up_to)
        responsibilities = self.responsibilities
        if responsibilities is None:
            parts = [(split_bank_tensor(tensor), values) for tensor, values in change.items()]
            trained = {part[0] for part, values in parts if part is not None and values.any()}
            responsibilities = dict.fromkeys(sorted(trained - {SHARED}), 1.0)
        return _Share(member_weights(weight, responsibilities), responsibilities, self.rejects)

    def _numbers(self, segment: Segment, share: _Share) -> NDArray[np.float32] | None:
        """Return the values of a segment of numbers; None if it has what the client learnt."""
        match segment.name.rpartition(".")[2]:
            case name if name == WEIGHT:
                return np.array([share.weight(segment.group)], np.float32)
            case name if name == RESPONSIBILITY:
                return np.array([share.responsibility(segment.group)], np.float32)
            case name if name == DIFFERENCES:
                return self._expert_differences(segment, share)
            case name if name == SCORES:
                return np.array(self._losses(), np.float32)
            case _:
                return None

    def _expert_differences(self, segment: Segment, share: _Share) -> NDArray[np.float32]:
        """Return 1, d_j of each other expert, and d_j^2; zeros for an expert that the client does not use."""
        expert = _expert(segment.group)
        if expert not in share.weights:
            return np.zeros(segment.values, np.float32)
        peers = [peer for peer in specialists_in(self.layout) if peer != expert]
        measured = self.differences.get(expert, {})
        costs = np.array([measured[j] if j in measured else _unknown_cost() for j in peers], np.float32)
        return np.concatenate([np.ones(1, np.float32), costs, np.square(costs)])

    def _losses(self) -> list[float]:
        sides = {"served": self.scores.served, "trained": self.scores.trained}
        return [sides[side][LOSS].value for side in SUMMED_SCORES]
