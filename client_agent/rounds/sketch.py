"""Compute the gradient sketch of a round, and charge the privacy ledger where the plan sets a price."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

import numpy as np

from client_agent.errors import SketchUnusable
from client_agent.model.examples import Example, probe_set
from client_agent.model.loading import BaseModel
from client_agent.privacy.accountant import noise_for
from client_agent.privacy.budget import BudgetSpent, TooFewRecords, require_private
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.release import MeanRelease, Mechanism, averaged, release, sample_records
from client_agent.rounds.client import Session
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Trainer
from client_agent.sketches.gradient import Sketch, clipped, ema, sketch_of
from client_agent.sketches.per_record import record_sketches
from schemas.maths.adapter import SIGNATURE
from schemas.messages.federations import SignatureDpPlan, SignaturePlan
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import SignatureManifest
from schemas.privacy import budget_status
from schemas.wire.envelope import pack

log = logging.getLogger(__name__)


def update_sketch(
    session: Session,
    trainer: Trainer,
    ledger: Ledger,
    opened: OpenedBrief,
    last: Sketch | None,
) -> Sketch:
    """Return the sketch to send in a round, smoothed over rounds.

    Args:
        last: the sketch of the round before.

    Raises:
        SketchUnusable: the sketch is zero or not finite, or has another length than `last`.
        NotPrivateEnough: the plan's sketches cost more than the silo allows.
        TooFewRecords, BudgetSpent, LedgerDamaged: with differential privacy.
    """
    plan = opened.brief.signature
    require_private(plan, session.max_epsilon, session.max_delta)
    if plan.dp is not None:
        return _released(session, trainer, ledger, opened.brief, plan.dp, last)
    fresh = compute_sketch(trainer, opened)
    return ema(last, fresh, plan.ema) if last is not None else fresh


def join_body(session: Session, trainer: Trainer, opened: OpenedBrief, sketch: Sketch | None) -> bytes:
    """Return the body of a newcomer's join, which carries its sketch; None = compute one.

    Raises:
        NotPrivateEnough: the plan's sketches cost more than the silo allows.
    """
    brief = opened.brief
    require_private(brief.signature, session.max_epsilon, session.max_delta)
    sketch = sketch or compute_sketch(trainer, opened)
    manifest = SignatureManifest(
        federation=session.federation_id,
        recipe={},
        round=brief.round,
        client=session.client_id,
        pack=trainer.frames(brief).pack_digest,
        signature_reliability=sketch.reliability,
        signature_epsilon=sketch.epsilon,
    )
    return pack({SIGNATURE: sketch.vector}, manifest)


def compute_sketch(trainer: Trainer, opened: OpenedBrief) -> Sketch:
    """Return the sketch (dim,) of the silo's probe set in the shared model without an adapter.

    The sketch is equal in all rounds of a plan, so a trainer computes it once.
    """
    plan = opened.brief.signature
    # The probe set and the model are fixed, so the sketch is equal in all rounds of a plan.
    key = f"{_shared_slug(opened.brief)} {plan.model_dump_json()}"
    if key not in trainer.sketches:
        trainer.sketches[key] = sketch_of(_shared_model(trainer, opened.brief), trainer.silo.data.train, plan)
    return trainer.sketches[key]


def mechanism_for(examples: Sequence[Example], plan: SignaturePlan, dp: SignatureDpPlan) -> Mechanism:
    """Return a silo's release mechanism under a plan: its sample and its noise.

    Raises:
        TooFewRecords: fewer than the plan's sample, or so many that delta protects none of them.
    """
    records = len(_distinct(examples))
    if records < dp.minimum_sample:
        raise TooFewRecords(
            f"{records} different training examples are too few for the plan's differential privacy, which "
            f"draws at least {dp.minimum_sample}: a sketch of fewer is mostly noise. Add examples, or ask "
            "the operator for a plan with a lower signature.dp.minimum_sample"
        )
    if dp.delta * records >= 1:
        raise TooFewRecords(
            f"delta {dp.delta:g} is too large for {records} records: one record may be revealed completely. "
            f"Ask the operator for a plan with a signature.dp.delta below {1 / records:.1g}"
        )
    sampled = min(plan.probe_examples, records)
    noise = noise_for(sampled, records, dp.releases or 1, dp.epsilon, dp.delta)
    return Mechanism(sampled, records, noise, plan.clip, plan.dim)


def _released(
    session: Session,
    trainer: Trainer,
    ledger: Ledger,
    brief: RoundBrief,
    dp: SignatureDpPlan,
    last: Sketch | None,
) -> Sketch:
    """Release a sample's noisy mean, averaged with earlier releases; beyond the budget, return `last`.

    Everything that can fail happens before the release is charged.
    """
    plan, examples = brief.signature, trainer.silo.data.train
    earlier = last.released if last is not None else None
    mechanism = mechanism_for(examples, plan, dp)
    try:
        book = ledger.priced(session.federation_id, brief.round, mechanism, dp, earlier)
    except BudgetSpent as refusal:
        if last is None:
            raise
        log.info("round %d: %s", brief.round, refusal)
        return last
    records = _distinct(examples)
    sample = [records[record] for record in sample_records(mechanism, secrets.randbelow)]
    sketches = list(record_sketches(_shared_model(trainer, brief), sample, plan))
    # A broken model is found before the release is paid for. A few such records count as zero.
    if sample and not any(np.isfinite(sketch).all() for sketch in sketches):
        raise SketchUnusable("no gradient is finite; load the shared model in float32 or bfloat16")
    # From here on the budget is spent, whatever happens to the sketch.
    ledger.write(book)
    epsilon = book.sketch_epsilon
    mean = averaged(earlier, release(sketches, mechanism, secrets.randbelow), mechanism, epsilon)
    over = sum(float(np.linalg.norm(sketch)) > plan.clip for sketch in sketches)
    log.info(
        "round %d: sketch released with noise %.2f; %s; %d of %d sampled records were clipped",
        brief.round,
        mechanism.noise_multiplier,
        budget_status(plan, epsilon, len(book.releases), book.sketch_delta),
        over,
        len(sketches),
    )
    return _scaled(mean)


def _scaled(mean: MeanRelease) -> Sketch:
    return Sketch(clipped(mean.mean.astype(np.float32), mean.clip), mean.reliability, mean)


def _shared_model(trainer: Trainer, brief: RoundBrief) -> BaseModel:
    slug = _shared_slug(brief)
    return trainer.silo.model_named(slug) if slug is not None else trainer.silo.base


def _shared_slug(brief: RoundBrief) -> str | None:
    return brief.signature.model or (brief.alignment.pivot if brief.alignment is not None else None)


def _distinct(examples: Sequence[Example]) -> list[Example]:
    """Return each record once: a repeated one would count twice, and be protected half as well."""
    # A repeated record would count twice, and be protected half as well.
    return probe_set(examples, len(examples))
