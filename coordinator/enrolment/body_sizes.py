"""Compare the bodies that a layout needs with the limits, counted by the code that writes them. Pure.

A body that cannot be written or read would end a round, so the plan or the enrolment is refused instead.
"""

from __future__ import annotations

from coordinator.errors import Invalid
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import (
    SIGNATURE,
    Layout,
    delta_layout,
    in_order,
    layer_module_name,
    lora_module_layout,
    module_name,
    size,
)
from schemas.maths.layout import block_layers, layers_with, roles_of, shape_in
from schemas.messages.alignment import PACK_BYTES
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import FoldedWeightsManifest, UpdateManifest
from schemas.wire.envelope import head
from schemas.wire.header import HEADER_LIMIT, least_header_bytes

_FLOAT32_BYTES = 4
_DIGEST = f"sha256:{0:064}"
# The longest values that a manifest can have: their header is the largest.
_LARGEST_COUNT = 2**31 - 1
_LONGEST_ID = "x" * 64
_LONGEST_SHARE = 1.2345678901234567e-10

_UPDATE = UpdateManifest(
    federation=_LONGEST_ID,
    recipe={},
    round=_LARGEST_COUNT,
    client=_LONGEST_ID,
    base=_DIGEST,
    pack=_DIGEST,
    examples=_LARGEST_COUNT,
    signature_reliability=_LONGEST_SHARE,
    signature_epsilon=_LONGEST_SHARE,
    training_epsilon=_LONGEST_SHARE,
)
_WEIGHTS_WITH_DELTA = FoldedWeightsManifest(
    federation=_LONGEST_ID,
    recipe={},
    round=_LARGEST_COUNT,
    client=_LONGEST_ID,
    pack=_DIGEST,
    fold_from=_LARGEST_COUNT,
)


def check_bodies(plan: FederationPlan, layout: Layout, *, base_delta: bool, field: str) -> None:
    """Raise unless every body of a layout fits: its header, and a dense float32 update as a whole.

    Raises:
        Invalid: one does not; the message names what the plan needs.
    """
    header = header_bytes(plan, layout, base_delta=base_delta)
    if header > HEADER_LIMIT:
        raise _too_many(len(layout) * (2 if base_delta else 1), header, base_delta=base_delta, field=field)
    total = len(_update_head(plan, layout)) + (size(layout) + plan.signature.dim) * _FLOAT32_BYTES
    limit = plan.limits.max_update_bytes
    if total > limit:
        raise Invalid(
            f"an update of this adapter has {total} bytes, and limits.max_update_bytes is {limit}; use "
            "a plan with a lower adapter.rank, fewer adapter.roles or a larger limits.max_update_bytes",
            field=field,
        )


def header_bytes(plan: FederationPlan, layout: Layout, *, base_delta: bool) -> int:
    """Return the size of the largest header of a layout: that of its update, or of weights with the largest
    base delta.
    """
    update = len(_update_head(plan, layout))
    if not base_delta:  # the head of weights is shorter: no sketch, and fewer members
        return update
    return max(update, len(head(in_order(layout | delta_layout(layout)), _WEIGHTS_WITH_DELTA)))


def check_depth(opened: OpenedPlan, profile: Profile, *, field: str) -> None:
    """Raise if the tensors of a model's layers do not fit into a header; nothing is laid out for it.

    Raises:
        Invalid: it has.
    """
    options = opened.options
    adapter = opened.plan.adapter
    tensors = 0
    for role in roles_of(adapter, profile):
        layer_layout = lora_module_layout({layer_module_name(0, role): (1, 1)}, adapter.travelling_lora_rank)
        travelling = {name: shape for name, shape in layer_layout.items() if options.travels(name)}
        tensors += len(travelling | options.beside(travelling)) * len(layers_with(role, profile, adapter))
    tensors *= 2 if options.base_delta else 1
    # A lower bound, since laying out thousands of layers would cost more than this check.
    least = least_header_bytes(tensors)
    if least > HEADER_LIMIT:
        raise _too_many(tensors, least, base_delta=options.base_delta, field=field)


def check_pack(plan: FederationPlan, profile: Profile) -> None:
    """Raise if the frames of a model's alignment pack exceed PACK_BYTES; no effect without shapes.

    Raises:
        Invalid: they do.
    """
    adapter = plan.adapter
    if plan.alignment is None:
        return
    ends = block_layers(adapter, profile.layers)
    shapes = (
        shape_in(ends[block], role, profile)
        for block in range(adapter.blocks)
        for role in roles_of(adapter, profile)
        if module_name(block, role) in adapter.modules()
    )
    width = sum(sum(shape) for shape in shapes if shape is not None)
    frames = adapter.rank * width * _FLOAT32_BYTES
    if frames > PACK_BYTES:
        raise Invalid(
            f"the frames of this model's alignment pack have {frames} bytes, and at most {PACK_BYTES} are "
            "allowed; use a plan with a lower adapter.rank, or fewer adapter.blocks or roles",
            field="profile.shapes",
        )


def _update_head(plan: FederationPlan, layout: Layout) -> bytes:
    return head(layout | {SIGNATURE: (plan.signature.dim,)}, _UPDATE)


def _too_many(tensors: int, header: int, *, base_delta: bool, field: str) -> Invalid:
    alternative = ", or a strategy without a base delta, which takes half of them" if base_delta else ""
    return Invalid(
        f"{tensors} tensors need a header of {header} bytes or more, and {HEADER_LIMIT} are allowed; "
        f"use a plan with fewer adapter.roles{alternative}",
        field=field,
    )
