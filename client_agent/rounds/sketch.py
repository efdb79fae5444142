"""Compute the signature that a round's plan asks for, and pay for it where the plan sets a price."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

import numpy as np

from client_agent.adapters.base import State
from client_agent.errors import SignatureUnusable
from client_agent.model.examples import Example, probe_set
from client_agent.model.loading import BaseModel
from client_agent.privacy.accountant import noise_for
from client_agent.privacy.budget import BudgetSpent, TooFewRecords, require_private
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.release import Averaged, Mechanism, averaged, release, sample_records
from client_agent.rounds.participant import Participant
from client_agent.sketches.gradient import Sketch, clipped, ema, sketch_of
from client_agent.sketches.per_record import record_sketches
from schemas.maths.adapter import SIGNATURE
from schemas.messages.federations import SignatureDpPlan, SignaturePlan
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import SignatureManifest
from schemas.privacy import spent
from schemas.wire.envelope import pack

log = logging.getLogger(__name__)


def sign(who: Participant, brief: RoundBrief, trained: State | None, last: Sketch | None) -> Sketch:
    """Give the signature to send in a round, smoothed over rounds; `last` is the one before.

    Raises:
        SignatureUnusable: it is zero or not finite, or of another length than `last`.
        NotPrivateEnough: the silo allows no such signature.
        TooFewRecords, BudgetSpent, LedgerDamaged: with differential privacy, as these say.
    """
    plan = brief.signature
    require_private(plan, who.max_epsilon)
    if plan.dp is not None:
        return _released(who, brief, plan.dp, last)
    fresh = sketch(who, brief, trained)
    return ema(last, fresh, plan.ema) if last is not None else fresh


def join_signature(who: Participant, brief: RoundBrief, signature: Sketch | None) -> bytes:
    """Write the body that lets a newcomer be weighed before its first update; None = make a signature.

    Raises:
        NotPrivateEnough: the silo allows no such signature.
    """
    require_private(brief.signature, who.max_epsilon)
    signature = signature or sketch(who, brief, None)
    manifest = SignatureManifest(
        federation=who.federation,
        recipe={},
        round=brief.round,
        client=who.client,
        pack=who.frames(brief).pack_digest,
        signature_reliability=signature.reliability,
        signature_epsilon=signature.epsilon,
    )
    return pack({SIGNATURE: signature.vector}, manifest)


def mechanism_for(examples: Sequence[Example], plan: SignaturePlan, dp: SignatureDpPlan) -> Mechanism:
    """Say how a silo releases under a plan: from which sample, with how much noise.

    Raises:
        TooFewRecords: too few to draw from, or so many that one in them may be betrayed by chance.
    """
    records = len(_distinct(examples))
    if records < dp.minimum_sample:
        raise TooFewRecords(
            f"{records} different training examples are too few for the plan's differential privacy, which "
            f"draws {dp.minimum_sample} at least: of fewer, little but noise would be left. Add examples, or "
            "have signature.dp.minimum_sample lowered in a new plan"
        )
    if dp.delta * records >= 1:
        raise TooFewRecords(
            f"delta {dp.delta:g} is no promise to {records} records: one of them may be betrayed outright. "
            f"Have signature.dp.delta set below {1 / records:.1g} in a new plan"
        )
    sampled = min(plan.probe_examples, records)
    noise = noise_for(sampled, records, dp.releases or 1, dp.epsilon, dp.delta)
    return Mechanism(sampled, records, noise, plan.clip, plan.dim)


def _released(who: Participant, brief: RoundBrief, dp: SignatureDpPlan, last: Sketch | None) -> Sketch:
    """Release a sample's noisy mean and average it with those before; past the budget, give `last` again.

    All that may fail is done before the release is paid for; once it is, it is made and handed on to be kept.
    """
    plan, examples = brief.signature, who.silo.data.train
    before = last.released if last is not None else None
    mechanism = mechanism_for(examples, plan, dp)
    ledger = Ledger(who.folder)
    try:
        book = ledger.priced(who.federation, brief.round, mechanism, dp, before)
    except BudgetSpent as refusal:
        if last is None:
            raise
        log.info("round %d: %s", brief.round, refusal)
        return last
    records = _distinct(examples)
    sample = [records[record] for record in sample_records(mechanism, secrets.randbelow)]
    sketches = list(record_sketches(_shared_model(who, brief), sample, plan))
    if sample and not any(np.isfinite(sketch).all() for sketch in sketches):
        raise SignatureUnusable("no gradient is finite; load the shared model in float32 or bfloat16")
    ledger.write(book)
    epsilon = book.releases[-1].epsilon
    made = averaged(before, release(sketches, mechanism, secrets.randbelow), mechanism, epsilon)
    over = sum(float(np.linalg.norm(sketch)) > plan.clip for sketch in sketches)
    log.info(
        "round %d: signature released with noise %.2f; %s; %d of %d drawn records were clipped",
        *(brief.round, mechanism.noise_multiplier, spent(plan, epsilon, len(book.releases))),
        *(over, len(sketches)),
    )
    return _sent(made)


def _sent(made: Averaged) -> Sketch:
    """Scale what is known to all down to the clip, as the coordinator wants it."""
    return Sketch(clipped(made.mean.astype(np.float32), made.clip), made.reliability, made)


def sketch(who: Participant, brief: RoundBrief, trained: State | None) -> Sketch:
    """Sketch as the plan's `signature.kind` says: (dim,).

    `gradient`: of the shared model, without any adapter, on our probe set. `representation`: of our own
    model, with the trained adapter if there is one, on the federation's anchors.
    """
    plan = brief.signature
    if plan.kind == "gradient":
        return sketch_of(_shared_model(who, brief), who.silo.data.train, plan)
    anchors = who.api.anchors(who.federation).anchors
    examples = [Example(anchor.prompt, anchor.answer) for anchor in anchors]
    with who.injected(brief) as adapter:
        if trained is not None:
            adapter.load(trained)
        return sketch_of(who.silo.base, examples, plan)


def _shared_model(who: Participant, brief: RoundBrief) -> BaseModel:
    """Give the model that the plan names for signatures, else the pivot, else our own."""
    shared = brief.signature.model or (brief.alignment.pivot if brief.alignment is not None else None)
    return who.silo.model_named(shared) if shared is not None else who.silo.base


def _distinct(examples: Sequence[Example]) -> list[Example]:
    """Give each record once: one that is there twice would count twice, and be hidden half as well."""
    return probe_set(examples, len(examples))
