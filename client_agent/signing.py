"""Compute the signature that a round's plan asks for. Knows no round's files."""

from __future__ import annotations

from client_agent.model.adapter import State
from client_agent.model.examples import Example
from client_agent.participant import Participant
from client_agent.signature import Signature, sketch_of
from schemas.maths.adapter import SIGNATURE
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import SignatureManifest
from schemas.wire.envelope import pack


def sketch(who: Participant, brief: RoundBrief, trained: State | None) -> Signature:
    """Sketch what the plan's `signature.kind` says: (dim,).

    `gradient`: that of the model that the plan names, else the pivot, else our own, without any adapter,
    on our probe set. `representation`: our own model's, with the trained adapter if there is one, on the
    federation's anchors.
    """
    plan = brief.signature
    if plan.kind == "gradient":
        shared = plan.model or (brief.alignment.pivot if brief.alignment is not None else None)
        model = who.silo.model_named(shared) if shared is not None else who.silo.base
        return sketch_of(model, who.silo.data.train, plan)
    anchors = who.api.anchors(who.federation).anchors
    examples = [Example(anchor.prompt, anchor.answer) for anchor in anchors]
    with who.injected(brief) as adapter:
        if trained is not None:
            adapter.load(trained)
        return sketch_of(who.silo.base, examples, plan)


def join_signature(who: Participant, brief: RoundBrief) -> bytes:
    """Write the body that lets a newcomer be weighed before its first update."""
    signature = sketch(who, brief, None)
    manifest = SignatureManifest(
        federation=who.federation,
        recipe={},
        round=brief.round,
        client=who.client,
        pack=who.frames(brief).pack_digest,
        signature_reliability=signature.reliability,
    )
    return pack({SIGNATURE: signature.vector}, manifest)
