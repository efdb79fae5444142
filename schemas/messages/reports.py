"""The report of a federation for an auditor: a document that the coordinator signs.

Signed documents have no fractions, so epsilon is text, and the plan is the text that its digest is of.
"""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from schemas.messages.base import Digest, Strict, UtcTime
from schemas.messages.enrolment import Traffic
from schemas.messages.federation_views import FederationState
from schemas.messages.rounds import ParticipationState, RoundState


class ReportMember(Strict):
    """A client of the federation, enrolled or revoked."""

    client: str
    """The id of the client."""
    name: str
    """The name of the client."""
    organisation: str | None
    """The organisation of the client; null = unknown."""
    base_model: str
    """The slug of its base model."""
    key: str | None
    """The thumbprint of its newest public key; null for a bearer client."""
    enrolled_at: UtcTime
    """The time of its enrolment."""
    revoked_at: UtcTime | None
    """The time at which it was revoked; null = it is enrolled."""
    bytes: Traffic
    """The client's encoded bytes in all rounds."""
    epsilon: str | None
    """The privacy budget spent on its sketches, as the client reported it; null = none was reported."""
    training_epsilon: str | None = None
    """The privacy budget spent on its training, as the client reported it; null = none was reported, which is
    always so under a secure sum.
    """


class ReportParticipation(Strict):
    """One client in one round. It was counted if its state is `arrived` and the round was published."""

    client: str
    """The id of the client."""
    state: ParticipationState
    """The state of the participation."""
    bytes: Traffic
    """The client's encoded bytes in this round."""
    update: Digest | None
    """The digest of its accepted update; null without one, and under a secure sum."""
    manifest: Digest | None
    """The hash of the signed manifest that it got when it joined."""
    reject_reason: str | None
    """Why its update was not counted."""


class ReportMixing(Strict):
    """Clients by what mixing did to their loss in a round, as they measured it on their own test examples."""

    better: int
    """The number of clients whose loss fell by at least two standard errors."""
    worse: int
    """The number of clients whose loss rose by at least two standard errors."""
    noise: int
    """The number of clients whose change is smaller than two standard errors."""


class ReportRound(Strict):
    """One round, in progress or ended."""

    round: int
    """The number of the round, from 1."""
    state: RoundState
    """The state of the round."""
    reason: str | None
    """Why the round was abandoned; null if it was not."""
    opened_at: UtcTime
    """The time at which the round opened."""
    ended_at: UtcTime | None
    """The time at which it was published or abandoned."""
    counted: list[str]
    """The ids of the clients whose updates are in the published weights or in the sum."""
    bytes: Traffic
    """Encoded bytes of the round."""
    mixing: ReportMixing | None
    """What mixing did to the clients' losses; null = no client has measured it, which is so in the first
    round and under a secure sum.
    """
    participations: list[ReportParticipation]
    """The clients that joined."""


class Report(Strict):
    """The record of a coordinator about a federation at a time, signed with its key."""

    version: Literal[1] = 1
    """The version of this format."""
    coordinator: str
    """The name of the coordinator."""
    signing_key: str
    """The coordinator's public key, base64url."""
    issued_at: UtcTime
    """The coordinator's time."""
    federation: str
    """The id of the federation."""
    name: str
    """The name of the federation."""
    state: FederationState
    """The state of the federation."""
    created_at: UtcTime
    """The time at which it was created."""
    finished_at: UtcTime | None
    """The time at which it finished; null before."""
    plan: str
    """The resolved plan, as JSON text."""
    plan_digest: Digest
    """The digest of that text, which the manifests of clients name."""
    claims: list[str]
    """Sentences about what the plan guarantees."""
    members: list[ReportMember]
    """All clients that ever enrolled."""
    roster_version: int
    """The number of entries of the roster."""
    roster_hash: Digest | None
    """The hash of its last entry, which manifests name; null if it is empty."""
    rounds: list[ReportRound]
    """All rounds, the first one first."""
    audit: list[dict[str, JsonValue]]
    """Entries of the audit log about the federation, its clients and their enrolment tokens."""
    audit_number: int
    """The number of entries in the whole audit log."""
    audit_hash: Digest | None
    """The hash of its last entry; null if it is empty."""
    signature: str
    """The coordinator's signature of the other members."""
