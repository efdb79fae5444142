"""Read and check the plan of a new federation."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import Query, Request
from pydantic import JsonValue, ValidationError

from coordinator.enrolment.eligibility import check_adapter, check_budget
from coordinator.errors import Invalid, JsonMalformed, all_of
from coordinator.federations.sum_checks import check_sum
from coordinator.http.json_body import LIMIT_BYTES, MAX_FAULTS, parse, read_json
from coordinator.strategies.opening import OpenedPlan, UnknownStrategy, load, open_plan, unknown_option
from coordinator.strategies.parts import require_compatible_parts
from schemas.messages.federations import FederationPlan, StrategyPlan
from schemas.messages.recommendations import completed
from schemas.names.spelling import NameRefused, new_name
from schemas.strategies.registry import strategy_names
from schemas.wire.strict_json import MalformedJson, loads

Recommended = Annotated[
    bool,
    Query(
        description="Whether fields that the plan does not name get what is recommended for its strategy, "
        "in place of the defaults of a plan."
    ),
]


async def sent_plan(request: Request, recommended: Recommended = False) -> FederationPlan:
    """Read the plan in the body of a request; a dependency that follows the caller in a route's signature.

    Raises:
        Invalid: the body is not a plan; all fields that are wrong are named.
        JsonMalformed, MediaTypeRefused, ContentEncodingRefused, BodyTooLarge, BodyIncomplete, DigestMissing,
            DigestMismatch: as for every JSON body.
    """
    body = await read_json(request, LIMIT_BYTES)
    return await to_thread.run_sync(_completed if recommended else _as_sent, body)


def _as_sent(body: bytes) -> FederationPlan:
    return _parsed(body)


def _completed(body: bytes) -> FederationPlan:
    """Read a plan and fill in what is recommended; a body that is not an object is refused as it was sent."""
    try:
        fields = loads(body)
    except MalformedJson as error:
        raise JsonMalformed from error
    if not isinstance(fields, dict):
        return parse(FederationPlan, body)
    return _parsed(json.dumps(completed(fields)).encode())


def _parsed(body: bytes) -> FederationPlan:
    """Parse a plan; wrong fields are named together with a wrong strategy, which is checked only later."""
    try:
        return parse(FederationPlan, body)
    except Invalid as error:
        raise Invalid.joined([error, *_refusals_of_strategy(body)]) from None


def _refusals_of_strategy(body: bytes) -> list[Invalid]:
    try:
        fields = loads(body)
        strategy = StrategyPlan.model_validate(fields["strategy"] if isinstance(fields, dict) else None)
        _resolved_strategy(strategy)
    except (MalformedJson, KeyError, ValidationError):  # named by the parser of the whole plan
        return []
    except Invalid as refusal:
        return [refusal]
    return []


def recommended_plan(strategy: str) -> dict[str, JsonValue]:
    """Return the plan of a federation of one base model that names only its strategy, without its name."""
    plan = FederationPlan.model_validate(completed({"name": strategy, "strategy": {"name": strategy}}))
    with suppress(Invalid):  # an option of a package has no default
        plan = plan.model_copy(update={"strategy": _resolved_strategy(plan.strategy)})
    return {part: fields for part, fields in plan.model_dump(mode="json").items() if part != "name"}


def resolved(plan: FederationPlan) -> FederationPlan:
    """Return the plan with the strategy's defaults, after checking that its parts fit together.

    Raises:
        Invalid: an unusable name, an unknown strategy or option, an adapter that cannot travel, meet a
            budget, be mixed or be summed, or signatures that cannot be compared.
    """
    all_of(
        (partial(_named, plan), partial(check_adapter, plan), partial(_resolved_strategy, plan.strategy)),
    )
    plan = plan.model_copy(
        update={"name": _named(plan), "strategy": _resolved_strategy(plan.strategy)},
    )
    opened = open_plan(plan)
    # All faults of a plan are reported at once.
    all_of(
        partial(check, opened)
        for check in (
            check_sum,
            require_compatible_parts,
            _check_private,
            _check_pull,
            _check_adapter_suits,
            _check_fit,
        )
    )
    check_budget(opened)
    return opened.plan


def _named(plan: FederationPlan) -> str:
    """Return the name of a federation in its normal form.

    Raises:
        Invalid: it is not usable.
    """
    try:
        return new_name(plan.name)
    except NameRefused as error:
        raise Invalid(f"name: {error}", field="name") from error


def _resolved_strategy(strategy: StrategyPlan) -> StrategyPlan:
    """Return a strategy with the defaults of its options.

    Raises:
        Invalid: it is unknown, or options are; all of them are named.
    """
    try:
        declared = load(strategy.name).options
    except UnknownStrategy as error:
        raise Invalid(f"strategy.name: {error}", field="strategy.name", known=[*strategy_names()]) from error
    options_of_plan, fields = strategy.options, declared.model_fields
    unknown = sorted(options_of_plan.keys() - fields.keys())
    if len(unknown) > MAX_FAULTS:
        raise Invalid(f"more than {MAX_FAULTS} options are unknown; leave them out", field="strategy.options")
    faults = [(f"strategy.options.{option}", unknown_option(strategy.name, option)) for option in unknown]
    refusals = [Invalid.of(faults)] if faults else []
    # Unknown options are reported together with wrong values of the others.
    known_options = {option: value for option, value in options_of_plan.items() if option in fields}
    try:
        options = parse(declared, json.dumps(known_options).encode(), under="strategy.options")
    except Invalid as error:
        raise Invalid.joined([*refusals, error]) from None
    if refusals:
        raise refusals[0]
    return StrategyPlan(name=strategy.name, options=options.model_dump(mode="json"))


def _check_fit(opened: OpenedPlan) -> None:
    """Raise if the plan lacks what its strategy needs.

    Raises:
        Invalid: it does; the message names the field.
    """
    unfit = opened.strategy.unfit(opened.plan)
    if unfit is not None:
        raise Invalid(f"{unfit.field}: {opened.plan.strategy.name} needs {unfit.fact}", field=unfit.field)


def _check_private(opened: OpenedPlan) -> None:
    """Raise if the plan asks for private training that the strategy's clients do not do.

    Raises:
        Invalid: something else than gradient steps reads their examples.
    """
    if opened.plan.privacy.training is not None and not opened.options.only_steps:
        raise Invalid(
            f"privacy.training: clients of {opened.plan.strategy.name} with these options use their training "
            "examples outside of gradient steps, which noise would not cover; choose another strategy, or "
            "leave it out",
            field="privacy.training",
        )


def _check_pull(opened: OpenedPlan) -> None:
    """Raise if the plan adds a term to a loss that the strategy's clients do not take.

    Raises:
        Invalid: their steps would leave it out.
    """
    if opened.plan.training.anchor_pull and not opened.options.adds_losses:
        raise Invalid(
            f"training.anchor_pull: the local steps of {opened.plan.strategy.name} take no further loss; "
            "choose another strategy, or 0",
            field="training.anchor_pull",
        )


def _check_adapter_suits(opened: OpenedPlan) -> None:
    plan, options = opened.plan, opened.options
    if plan.adapter.travelling_lora_rank and options.gated:
        field = "adapter.kind" if plan.adapter.kind == "lora" else "adapter.same_architecture_rank"
        raise Invalid(
            f"{field}: a gate needs adapters in common frames, which ordinary LoRA does not have; choose a "
            "strategy option without a gate, or adapter.kind pq with same_architecture_rank 0",
            field=field,
        )
    if options.lora_only and plan.adapter.kind != "lora":
        raise Invalid(
            f"adapter.kind: {plan.strategy.name} needs ordinary LoRA factors; use lora, without an alignment",
            field="adapter.kind",
        )
    if plan.adapter.rslora and options.mixed_ranks:
        raise Invalid(
            f"adapter.rslora: clients of {plan.strategy.name} differ in rank, so that their factors "
            "would differ and their A and B could not be combined; leave it out, and set adapter.scale",
            field="adapter.rslora",
        )
    if options.least_rank is not None and options.least_rank > plan.adapter.rank:
        raise Invalid(
            f"strategy.options: the least rank is {options.least_rank}, and adapter.rank is the largest",
            field="adapter.rank",
        )
