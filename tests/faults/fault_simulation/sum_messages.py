"""Messages of agents in sums, delivered or not, and the conditions for sending them.

I22: in a session at most one kind of share of each peer ever leaves an agent. I23: of every step of a session
one body leaves an agent, whatever killed it in between: above all, one masked vector. I24: no agent unmasks
two sessions of one kind in a round. I27: an agent unmasks only after the threshold has confirmed the sets
that it was shown, and if these are large enough, whatever a lying coordinator says. I28: nor if a group of
the sum may have too few members (`counting`).
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from client_agent.storage.round_folder import INPUT
from schemas.identity.keys import public_key
from schemas.messages.secure_sum import ConfirmAnswer, MaskedAnswer, SharesAnswer, SumTerms, UnmaskStep
from schemas.secure_sum.encoding import CLIP_UNIT, Modulus
from schemas.secure_sum.statements import are_sets_signed, masked_digest, sharing_digest
from schemas.secure_sum.terms import terms_hash
from schemas.wire.digests import digest_of
from tests.faults.fault_simulation.counting import is_count
from tests.faults.fault_simulation.fault_rates import CLIP, MOST_LIES
from tests.faults.fault_simulation.sum_rows import PHASES, Summed

if TYPE_CHECKING:
    from tests.faults.fault_simulation.network import Sent
    from tests.faults.fault_simulation.replicas import Answer
    from tests.faults.fault_simulation.world import World

Place = tuple[int, int, int]  # agent, round, session

_STEP = re.compile(r"/rounds/(\d+)/secure-sum/(\d+)/(\d)$")
_SHARES, _MASKED, _CONFIRM, _UNMASK = 1, 2, 3, 4


class SumsSent:
    """Watches every message of a sum as it leaves its agent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bodies: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self._kinds: dict[tuple[Place, int], set[str]] = defaultdict(set)
        self._revealed: dict[tuple[int, int, int, str], set[int]] = defaultdict(set)
        self._inputs: dict[Place, NDArray[np.int64]] = {}
        self._lies = 0
        self._received: dict[tuple[Place, int], list[bytes]] = defaultdict(list)

    def has_sent(self, client: str, row: Summed, step: str, digest: str) -> bool:
        """Whether a client's agent has sent a body with this digest."""
        body = self._bodies[self._place(client, row)].get(PHASES.index(step))
        return body is not None and digest_of(body) == digest

    def input_of(self, row: Summed, client: str) -> NDArray[np.int64]:
        """Return the input that a client had when it sent its masked vector."""
        return self._inputs[self._place(client, row)]

    def _place(self, client: str, row: Summed) -> Place:
        return self._world.index_of_clients()[client], row.round, row.number

    def sent(self, agent: int, sent: Sent) -> None:
        """Note a message that leaves its agent."""
        match = _STEP.search(sent.target)
        if sent.method != "PUT" or match is None:
            return
        number, session, step = (int(text) for text in match.groups())
        place, body = (agent, number, session), sent.body
        row = self._world.oracle.sums.session(number, session)
        if row is None:
            self._violated("the simulation is whole", f"agent {agent} answers a session that there is not")
            return
        if step == _UNMASK:
            self._unmasks(place, row.terms, body)
        if self._bodies[place].setdefault(step, body) != body:
            self._violated(
                "I23", f"agent {agent} sent two messages of step {step} in session {session} of {number}"
            )
        if step == _MASKED and place not in self._inputs:
            self._masks(place, row, body)

    def _unmasks(self, place: Place, terms: SumTerms, body: bytes) -> None:
        agent, number, session = place
        others = [
            place_sent
            for place_sent, steps in self._bodies.items()
            if place_sent[:2] == place[:2]
            and _UNMASK in steps
            and place_sent != place
            and self._kind(place_sent) == terms.kind
        ]
        if others:
            self._violated(
                "I24", f"agent {agent} has unmasked in sessions {others[0][2]} and {session} of {number}"
            )
        for share in UnmaskStep.model_validate_json(body).shares:
            kinds = self._kinds[place, share.position]
            kinds.add(share.of)
            if len(kinds) > 1:
                self._violated("I22", f"agent {agent} has sent both shares of member {share.position}")
            owner = (number, session, share.position)
            self._revealed[*owner, share.of].add(agent)
            if min(len(self._revealed[*owner, of]) for of in "bs") >= terms.threshold:
                self._violated("I25", f"who reads all messages can open the input of member {share.position}")
        if not any(self._is_confirmed(place, terms)):
            self._violated(
                "I27", f"agent {agent} has unmasked in session {session} of {number} without grounds"
            )

    def _kind(self, place: Place) -> str:
        row = self._world.oracle.sums.session(*place[1:])
        return row.terms.kind if row is not None else ""

    def _is_confirmed(self, place: Place, terms: SumTerms) -> Iterator[bool]:
        """Yield, for each received confirmation, whether it permits unmasking."""
        agent = place[0]
        names = {index: client for client, index in self._world.index_of_clients().items()}
        own_position = [member.client for member in terms.members].index(names[agent])
        for first in self._read(place, _SHARES, SharesAnswer):
            sharing = dict(zip(first.members, first.commitments, strict=True))
            for second in self._read(place, _MASKED, MaskedAnswer):
                masked = set(second.members)
                is_large = len(masked) >= max(terms.threshold, terms.minimum)
                for third in self._read(place, _CONFIRM, ConfirmAnswer):
                    digests = sharing_digest(sharing), masked_digest(sorted(masked))
                    are_signed = all(
                        are_sets_signed(
                            terms_hash(terms), *digests, answer, public_key(terms.members[position].key)
                        )
                        for position, answer in zip(third.members, third.answers, strict=True)
                    )
                    members = set(third.members)
                    yield (
                        is_large
                        and own_position in masked
                        and masked <= sharing.keys()
                        and members <= masked
                        and len(members) >= terms.threshold
                        and are_signed
                        and self._world.oracle.sums.counts.allows(place[1], terms, len(masked))
                    )

    def _read(self, place: Place, step: int, kind: Any) -> list[Any]:
        return [kind.model_validate_json(body) for body in self._received[place, step]]

    def _masks(self, place: Place, row: Summed, body: bytes) -> None:
        """Record an agent's input, and compare it with its trained change."""
        agent, number, _ = place
        stored = next((self._world.disks.folder / f"agent-{agent}").glob(f"*/rounds/{number:06d}/{INPUT}"))
        tensors = safetensors.numpy.load(stored.read_bytes())
        parts = [tensors[segment.name].astype(np.int64) for segment in row.terms.segments]
        values = self._inputs[place] = np.concatenate(parts)
        modulus = Modulus(row.terms.modulus)
        is_clear = body == modulus.pack((values % 2**row.terms.modulus).astype(modulus.word))
        if is_clear != (row.terms.masking == "none"):
            self._violated(
                "I25", f"agent {agent} sent its input in clear" if is_clear else "a plain sum has masks"
            )
        if row.terms.kind == "counts":
            if not is_count(values, row.terms):
                self._violated("I21", f"agent {agent} counts itself by something else than 0 and 1")
            self._world.oracle.bank.counts_itself(agent, number, row.terms, values)
        elif not any(self._is_learnt(row, values, candidate) for candidate in self._changes(agent, number)):
            self._violated("I21", f"the input of agent {agent} is not what it learnt in round {number}")

    def _is_learnt(self, row: Summed, values: NDArray[np.int64], change: NDArray[np.float64]) -> bool:
        drawn = self._world.plan.summed
        weight = 1.0 if drawn is None or drawn.weigh_up_to is None else 10 / drawn.weigh_up_to
        step = row.terms.segments[0].clip * CLIP_UNIT / (2 ** (row.terms.bits - 1) - 1)
        encoded_change = values[: len(change)] * step
        return bool(
            np.allclose(encoded_change, np.clip(change * weight, -CLIP, CLIP), rtol=0.0, atol=1.01 * step)
        )

    def _changes(self, agent: int, number: int) -> Iterator[NDArray[np.float64]]:
        meaning = self._world.oracle.meaning
        for trained, start in reversed(meaning.attempts(agent, number)):
            yield trained.astype(np.float64) - start

    # What agents are told.

    def record(self, agent: int, sent: Sent, answer: Answer) -> None:
        """Record an answer to an agent, after a dishonest coordinator may have changed it."""
        match = _STEP.search(sent.target)
        if sent.method != "GET" or match is None or answer.status != 200:
            return
        number, session, step = (int(text) for text in match.groups())
        self._received[(agent, number, session), step].append(bytes(answer.body))

    def lie(self, sent: Sent, answer: Answer, dice: random.Random) -> None:
        """Change some answers, as a coordinator that wants to open inputs would."""
        match, drawn = _STEP.search(sent.target), self._world.plan.summed
        if sent.method != "GET" or match is None or answer.status != 200 or drawn is None:
            return
        row = self._world.oracle.sums.session(int(match.group(1)), int(match.group(2)))
        change = {_MASKED: _too_few, _CONFIRM: dice.choice([_too_few, _forged])}.get(int(match.group(3)))
        if row is None or change is None or self._lies == MOST_LIES or dice.random() >= drawn.lies:
            return
        self._lies += 1
        body = json.dumps(change(json.loads(bytes(answer.body)), row)).encode()
        answer.body[:] = body
        answer.headers = [
            (name, str(len(body)).encode() if name.lower() == b"content-length" else value)
            for name, value in answer.headers
        ]
        self._world.count("lies told")

    def _violated(self, promise: str, event: str) -> None:
        self._world.violated(promise, event)


def _too_few(answer: dict[str, list[Any]], row: Summed) -> dict[str, list[Any]]:
    """Report one member fewer than needed."""
    return {name: values[: row.terms.threshold - 1] for name, values in answer.items()}


def _forged(answer: dict[str, list[Any]], _: Summed) -> dict[str, list[Any]]:
    """Pass one member's confirmation off as another's."""
    return {**answer, "answers": [answer["answers"][1], *answer["answers"][1:]]}


Change = Callable[[dict[str, list[Any]], Summed], dict[str, list[Any]]]
