"""Clients of a summed round over HTTP, with the agent's own protocol, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from client_agent.secure_sum.expectation import Expectation, accept_terms
from client_agent.secure_sum.member import KeySet, Member, OwnShares, ShareSet, new_secrets
from schemas.identity.documents import hash_of
from schemas.identity.keys import decode, encode
from schemas.maths.adapter import in_order
from schemas.messages.secure_sum import (
    CAPABILITY,
    ConfirmAnswer,
    KeysAnswer,
    KeysStep,
    MaskedAnswer,
    SharesAnswer,
    SumStatus,
    SumTerms,
)
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import LEAST_GROUP
from schemas.secure_sum.count_proofs import summed_commitments
from schemas.secure_sum.counts import encoded_counts
from schemas.secure_sum.encoding import Modulus, largest_encoded
from schemas.secure_sum.segments import values_digest
from schemas.wire.digests import digest_of, to_field
from tests.scene.coordinator import SIGNING_KEY, Served, Silo
from tests.scene.database import ask
from tests.scene.rounds import plan, running, url, values
from tests.scene.waiting import wait_until

SERVER_KEY = Ed25519PrivateKey.from_private_bytes(decode(SIGNING_KEY)).public_key()
ZEROS = {name: np.zeros_like(tensor) for name, tensor in values(0.0).items()}
VALUES = values_digest(ZEROS, in_order({name: zeros.shape for name, zeros in ZEROS.items()}))
KEYS, SHARES, MASKED, CONFIRM, UNMASK = range(5)


@dataclass
class SumClient:
    """A client in a session: its messages are made by the agent's code, and kept to be sent again."""

    silo: Silo
    round: int
    input: NDArray[np.int32] | None = None
    terms: SumTerms | None = None
    seen: int | None = None
    sent: dict[int, bytes] = field(default_factory=dict)
    values: str = VALUES
    """The digest of the values that all clients were served."""
    memberships: frozenset[str] = frozenset()
    """The groups that the client belongs to."""
    patience: float = 20.0
    commitments: dict[str, str] | None = None
    """The commitments to the counts that the client has confirmed, by group."""

    def status(self, *, seen: int | None = None, wait: int = 0) -> SumStatus | None:
        """Return the status of the sum; None if it has not changed."""
        path = url(self.silo, self.round, "/secure-sum") + (f"?seen={seen}" if seen is not None else "")
        answer = self.silo.http.get(path, headers=_prefer(wait))
        if answer.status_code == 204:
            return None
        assert answer.status_code == 200, answer.text
        return SumStatus.model_validate_json(answer.content)

    def begin(self, roster: Mapping[str, str], version: int, roster_hash: str) -> None:
        """Accept the terms of the current session, once there is one, and make secrets."""
        status = wait_until(self._with_session, self.patience)
        assert status.terms is not None
        self.seen = status.phase
        self.accept(status.terms, roster, version, roster_hash, status.counts)

    def accept(
        self,
        terms: SumTerms,
        roster: Mapping[str, str],
        version: int,
        roster_hash: str,
        counts: SumCounts | None = None,
    ) -> None:
        """Accept the terms of a session, and make secrets; the input is drawn once for a length."""
        self.terms = terms
        if terms.kind == "counts":
            groups = [segment.name for segment in terms.segments]
            self.input = encoded_counts(groups, self.memberships, terms.bits)
        elif self.input is None or len(self.input) != terms.values:
            rng = np.random.default_rng([self.round, *self.silo.client_id.encode()])
            self.input = rng.integers(-largest_encoded(16), largest_encoded(16) + 1, terms.values).astype(
                np.int32
            )
        self.sent = {}
        expectation = Expectation(
            federation=self.silo.federation_id,
            round=self.round,
            client=self.silo.client_id,
            server_key=SERVER_KEY,
            roster=roster,
            roster_version=version,
            roster_hash=roster_hash,
            plan=self.terms.plan,
            weights=self.values,
            segments=tuple(self.terms.segments),
            bits=16,
            minimum=self.terms.minimum,
            kind=self.terms.kind,
            masking=self.terms.masking,
            least_per_group=LEAST_GROUP,
            groups=tuple(counts.groups) if counts is not None else (),
            counts=counts,
            commitments=self.commitments,
            choices=terms.choices,
        )
        accepted = accept_terms(self.terms, expectation)
        self._member = Member(accepted, new_secrets(), self.silo.key, expectation)

    @property
    def position(self) -> int:
        return self._member.position

    def message(self, step: int) -> bytes:
        """Return the body of a step, from the answers so far; the same bytes each time."""
        if step not in self.sent:
            make = (self._keys, self._shares, self._masked, self._confirm, self._unmask)
            self.sent[step] = make[step]()
        return self.sent[step]

    def put(self, step: int, body: bytes | None = None, *, session: int | None = None) -> httpx.Response:
        """Send the message of a step, or the given bytes."""
        octets = self.message(step) if body is None else body
        kind = "application/octet-stream" if step == MASKED else "application/json"
        headers = {"Content-Type": kind, "Content-Digest": to_field(digest_of(octets))}
        return self.silo.http.put(self.path(step, session), content=octets, headers=headers)

    def get(self, step: int, *, session: int | None = None, wait: int = 0) -> httpx.Response:
        """Request the answer of a step."""
        return self.silo.http.get(self.path(step, session), headers=_prefer(wait))

    def path(self, step: int, session: int | None = None) -> str:
        number = session if session is not None else self.terms.session if self.terms is not None else 1
        return url(self.silo, self.round, f"/secure-sum/{number}/{step}")

    def answer(self, step: int) -> bytes:
        """Wait for the answer of a step."""
        return wait_until(lambda: self._answer(step), self.patience)

    def _with_session(self) -> SumStatus | None:
        status = self.status()
        return status if status is not None and status.session is not None else None

    def _answer(self, step: int) -> bytes | None:
        answer = self.get(step, wait=5)
        assert answer.status_code in (200, 204), answer.text
        return answer.content if answer.status_code == 200 else None

    def _keys(self) -> bytes:
        return self._member.keys().model_dump_json().encode()

    def _shares(self) -> bytes:
        own_keys = KeysStep.model_validate_json(self.sent[KEYS])
        answer = KeysAnswer.model_validate_json(self.answer(KEYS))
        self._keyed: KeySet = self._member.accept_keys(answer, own_keys)
        self._own: OwnShares = self._member.shares(self._keyed)
        return self._own.step.model_dump_json().encode()

    def _masked(self) -> bytes:
        assert self.terms is not None
        assert self.input is not None
        if self.terms.masking == "none":
            modulus = Modulus(self.terms.modulus)
            return modulus.pack(self.input.astype(np.int64).astype(modulus.word))
        answer = SharesAnswer.model_validate_json(self.answer(SHARES))
        self._shared: ShareSet = self._member.accept_shares(answer, self._keyed, self._own)
        return self._member.masked(self.input, self._keyed, self._shared)

    def _confirm(self) -> bytes:
        answer = MaskedAnswer.model_validate_json(self.answer(MASKED))
        self._summed = self._member.accept_masked(answer, self._shared)
        if self.terms is not None and self.terms.kind == "counts":
            sums = summed_commitments(self.terms, map(decode, answer.inputs))
            names = [segment.name for segment in self.terms.segments]
            self.commitments = dict(zip(names, map(encode, sums), strict=True))
        return self._member.confirm(self._shared, self._summed).model_dump_json().encode()

    def _unmask(self) -> bytes:
        answer = ConfirmAnswer.model_validate_json(self.answer(CONFIRM))
        return self._member.unmask(answer, self._shared, self._summed).model_dump_json().encode()


@dataclass
class SummedRound:
    """A federation whose clients are ready for the sum of round 1, in the order of their positions."""

    served: Served
    federation_id: str
    clients: list[SumClient]

    def begin(self, clients: Iterable[SumClient] | None = None) -> None:
        """Accept the terms of the current session for clients."""
        keys, version, link = roster_of(self.served.admin, self.federation_id)
        for client in self.clients if clients is None else clients:
            client.begin(keys, version, link)

    def step(self, step: int, *, stop: Iterable[int] = ()) -> None:
        """Send a step for all clients but those at some positions."""
        for client in self.clients:
            if client.position not in set(stop):
                sent = client.put(step)
                assert sent.status_code == 201, sent.text

    def view(self) -> dict[str, Any]:
        shown = self.served.admin.get(f"/v1/federations/{self.federation_id}/rounds/1")
        assert shown.status_code == 200, shown.text
        return dict(shown.json())

    def wait_for(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 20.0) -> dict[str, Any]:
        """Wait until a condition on the view of the round holds; return the view."""

        def published_view() -> dict[str, Any] | None:
            view = self.view()
            return view if holds(view) else None

        return wait_until(published_view, seconds)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read rows of the federation's sessions: `rows("SELECT ... FROM sum_sessions WHERE {ours}")`."""
        of_federation = f"round_id IN (SELECT id FROM rounds WHERE federation_id = '{self.federation_id}')"
        return ask(self.served.database_url, query.format(ours=of_federation))

    def total(self) -> NDArray[np.int64]:
        """Wait for the total of the round, and read it past the service."""
        self.wait_for(lambda view: view["secure_sum"]["counted"] is not None)
        query = "SELECT total_payload_id FROM sum_sessions WHERE state = 'done' AND {ours}"
        ((payload_id,),) = self.rows(query)
        chunks = self.rows(f"SELECT data FROM payload_chunks WHERE payload_id = {payload_id} ORDER BY begin")
        return np.frombuffer(b"".join(bytes(data) for (data,) in chunks), "<i4").astype(np.int64)

    def expected(self, positions: Iterable[int] | None = None) -> NDArray[np.int64]:
        """Return the exact sum of the inputs of clients at some positions, or of all."""
        members = None if positions is None else set(positions)
        inputs = [client.input for client in self.clients if members is None or client.position in members]
        total: NDArray[np.int64] = np.sum([x.astype(np.int64) for x in inputs if x is not None], axis=0)
        return total


def summing(served: Served, clients: int = 5, **secure_sum: Any) -> SummedRound:
    """Make clients join round 1 and become ready."""
    rounds = {"total": 3, "min_clients": clients, "quorum": clients}
    summed_plan = plan(privacy={"secure_sum": {"minimum": 3, **secure_sum}}, rounds=rounds)
    federation_id, silos = running(served, clients, **summed_plan)
    for silo in silos:
        make_ready(silo)
    return SummedRound(served, federation_id, [SumClient(silo, 1) for silo in silos])


def make_ready(silo: Silo, number: int = 1, *, values: str = VALUES) -> None:
    joined = silo.http.post(url(silo, number, "/join"))
    assert joined.status_code == 200, joined.text
    base = joined.json()["weights"]["digest"]
    ready = silo.http.put(
        url(silo, number, "/ready"), json={"base": base, "values": values, "format": CAPABILITY}
    )
    assert ready.status_code in (200, 201), ready.text


def roster_of(admin: Any, federation_id: str) -> tuple[dict[str, str], int, str]:
    """Return the identity keys by client, and the version and hash of the roster."""
    page = admin.get(f"/v1/federations/{federation_id}/roster?limit=500").json()
    keys: dict[str, str] = {}
    for entry in page["items"]:
        keys.pop(entry["client"], None)
        if entry["public_key"] is not None:
            keys[entry["client"]] = entry["public_key"]
    newest = page["items"][-1]
    return keys, newest["version"], hash_of(newest)


def _prefer(wait: int) -> dict[str, str]:
    return {"Prefer": f"wait={wait}"} if wait else {}
