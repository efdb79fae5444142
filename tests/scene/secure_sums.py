"""A session in memory: members and the server exchange the real messages; members may stop at any step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.secure_sum.expectation import Expectation, accept_terms
from client_agent.secure_sum.member import KeySet, Member, OwnShares, ShareSet, new_secrets
from coordinator.secure_sum import intake
from coordinator.secure_sum.phases import Phase, required
from coordinator.secure_sum.unmasking import opened_keys, unmasked_counts, unmasked_sum
from schemas.identity.keys import decode, encode, name_of
from schemas.messages.secure_sum import CAPABILITY, ConfirmStep, KeysStep, SharesStep, SumTerms, UnmaskStep
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.count_proofs import are_proved
from schemas.secure_sum.curve import commit, encode_scalar
from schemas.secure_sum.encoding import largest_encoded, modulus_for
from schemas.secure_sum.errors import SessionAborted
from schemas.secure_sum.terms import signed_terms, threshold_for

DIGEST = f"sha256:{'0' * 64}"
SERVER = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
VALUES = 20


def identity(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


def terms_of(members: int, /, **changes: object) -> SumTerms:
    """Return terms for members 0 to `members` - 1 with one segment of 20 values."""
    fields: dict[str, object] = {
        "format": CAPABILITY,
        "federation": "fed_1",
        "round": 3,
        "session": 1,
        "kind": "sum",
        "nonce": "bm9uY2U",
        "members": [{"client": f"cli_{n:03}", "key": name_of(identity(n))} for n in range(members)],
        "threshold": threshold_for(members),
        "minimum": min(3, members),
        "roster_version": 9,
        "roster_hash": DIGEST,
        "plan": DIGEST,
        "weights": DIGEST,
        "segments": [{"name": "lora", "values": VALUES, "clip": 1 << 20}],
        "bits": 16,
        "modulus": modulus_for(members, 16).bits,
        "phase_seconds": 120,
    }
    return signed_terms({**fields, **changes}, SERVER)


def expectation_of(terms: SumTerms, position: int, **changes: object) -> Expectation:
    """Return what an honest member expects, if the terms are what the plan says."""
    fields: dict[str, object] = {
        "federation": "fed_1",
        "round": 3,
        "client": f"cli_{position:03}",
        "server_key": SERVER.public_key(),
        "roster": {member.client: member.key for member in terms.members},
        "roster_version": 9,
        "roster_hash": DIGEST,
        "plan": DIGEST,
        "weights": DIGEST,
        "segments": tuple(terms.segments),
        "bits": 16,
        "minimum": min(3, len(terms.members)),
    }
    return Expectation(**{**fields, **changes})  # type: ignore[arg-type]


def inputs_of(members: int, values: int = VALUES, *, seed: int = 0) -> dict[int, NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return {
        n: rng.integers(-largest_encoded(16), largest_encoded(16) + 1, values).astype(np.int32)
        for n in range(members)
    }


@dataclass
class Session:
    """A session with its members, and all messages so far as the server has them."""

    terms: SumTerms
    inputs: Mapping[int, NDArray[np.int32]]
    stops: Mapping[int, int] = field(default_factory=dict)
    """The step from which on a member does not answer."""
    expected_by_members: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = {
            n: Member(
                accept_terms(self.terms, expectation_of(self.terms, n, **self.expected_by_members)),
                new_secrets(),
                identity(n),
                expectation_of(self.terms, n, **self.expected_by_members),
            )
            for n in range(len(self.terms.members))
        }
        self.keys: dict[int, KeysStep] = {}
        self.shares: dict[int, SharesStep] = {}
        self.masked: dict[int, bytes] = {}
        self.confirmed: dict[int, ConfirmStep] = {}
        self.unmasked: dict[int, UnmaskStep] = {}
        self.keyed: dict[int, KeySet] = {}
        self.own: dict[int, OwnShares] = {}
        self.shared: dict[int, ShareSet] = {}
        self.openings: list[int] = []
        """The sums of the blindings of counts, once they are opened."""

    def run(self) -> NDArray[np.int64]:
        """Run all steps; return the sum.

        Raises:
            SessionAborted: too few members answered a step.
        """
        return self.run_steps().open()

    def run_steps(self, steps: int = 5) -> Session:
        """Run the first steps; return the session."""
        every = (self.step_keys, self.step_shares, self.step_masked, self.step_confirm, self.step_unmask)
        for step in every[:steps]:
            step()
        return self

    def step_keys(self) -> None:
        for n in self._answering(0, self.members):
            step = self.members[n].keys()
            intake.check_keys(self.terms, n, step, self.keys.values())
            self.keys[n] = step
        self._close("keys", len(self.keys))

    def step_shares(self) -> None:
        for n in self._answering(1, self.keys):
            self.keyed[n] = self.members[n].accept_keys(intake.keys_answer(self.keys), self.keys[n])
            self.own[n] = self.members[n].shares(self.keyed[n])
            intake.check_shares(self.keys, n, self.own[n].step)
            self.shares[n] = self.own[n].step
        self._close("shares", len(self.shares))

    def step_masked(self) -> None:
        for n in self._answering(2, self.shares):
            answer = intake.shares_answer(n, self.keys, self.shares)
            self.shared[n] = self.members[n].accept_shares(answer, self.keyed[n], self.own[n])
            octets = self.members[n].masked(self.inputs[n], self.keyed[n], self.shared[n])
            if self.terms.kind == "counts":
                intake.check_counts(self.terms, n, octets)
            intake.check_masked(self.terms, n, len(octets))
            self.masked[n] = octets
        self._close("masked", len(self.masked))

    def step_confirm(self) -> None:
        for n in self._answering(3, self.masked):
            answer = intake.masked_answer(self.terms, self.masked)
            masked = self.members[n].accept_masked(answer, self.shared[n])
            step = self.members[n].confirm(self.shared[n], masked)
            intake.check_confirmation(self.terms, n, step, self.commitments(), self.masked)
            self.confirmed[n] = step
        self._close("confirm", len(self.confirmed))

    def step_unmask(self) -> None:
        for n in self._answering(4, self.confirmed):
            answer = intake.confirm_answer(self.confirmed)
            step = self.members[n].unmask(answer, self.shared[n], sorted(self.masked))
            intake.check_unmask(n, step, self.shares, self.masked)
            self.unmasked[n] = step
        self._close("unmask", len(self.unmasked))

    def open(self) -> NDArray[np.int64]:
        opened = opened_keys(self.terms, self.keys, self.commitments(), frozenset(self.masked), self.unmasked)
        if are_proved(self.terms):
            total, self.openings = unmasked_counts(self.terms, opened, self.masked.values())
            return total
        (total,) = unmasked_sum(self.terms, opened, len(self.masked), [self.masked.values()])
        return total

    def commitments(self) -> dict[int, str]:
        return {n: step.commitment for n, step in self.shares.items()}

    def expected(self) -> NDArray[np.int64]:
        """Return the exact sum of the inputs that the server has counted."""
        total: NDArray[np.int64] = np.sum([self.inputs[n].astype(np.int64) for n in self.masked], axis=0)
        return total

    def _answering(self, step: int, members: Mapping[int, object]) -> list[int]:
        return [n for n in sorted(members) if self.stops.get(n, 5) > step]

    def _close(self, phase: Phase, answered: int) -> None:
        if answered < required(self.terms, phase):
            raise SessionAborted(f"too few answers: {phase}")


def session_until(step: int, members: int = 5, stops: Mapping[int, int] | None = None) -> Session:
    """Return a session whose open step is `step`."""
    return Session(terms_of(members), inputs_of(members), stops or {}).run_steps(step)


Shares = dict[tuple[int, str], dict[int, bytes]]
"""Shares in clear: by owner and secret, by holder."""


def shares_in(unmasked: Mapping[int, UnmaskStep]) -> Shares:
    """Return all shares that members have revealed."""
    shares: Shares = {}
    for holder, step in unmasked.items():
        for share in step.shares:
            shares.setdefault((share.position, share.of), {})[holder] = decode(share.share)
    return shares


def opened(counts: SumCounts) -> tuple[SumCounts, dict[str, str]]:
    """Return counts with openings, and the commitments to them, as members keep them."""
    openings = {group: place + 5 for place, group in enumerate(counts.groups)}
    commitments = {group: encode(commit(count, openings[group])) for group, count in counts.groups.items()}
    texts = {group: encode(encode_scalar(scalar)) for group, scalar in openings.items()}
    return counts.model_copy(update={"openings": texts}), commitments
