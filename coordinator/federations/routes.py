"""Routes that create and show federations; `coordinator.rounds` starts and ends their rounds."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends

from coordinator.auth.authentication import still_person
from coordinator.auth.permissions import AsAuditor, AsOperator, AsPersonAnywhere
from coordinator.enrolment.eligibility import check_adapter, check_budget
from coordinator.enrolment.names import NameLooksAlike
from coordinator.errors import AuthMissing, Forbidden, Invalid, JsonMalformed, NotFound, all_of
from coordinator.federations import store
from coordinator.federations.sum_checks import check_sum
from coordinator.http.dependencies import TheDatabase
from coordinator.http.json_body import MAX_FAULTS, json_body, parse, takes
from coordinator.http.params import DEFAULT_LIMIT, After, FederationId, Limit
from coordinator.http.problems import answers
from coordinator.observability.logs import logger
from coordinator.storage import audit_log
from coordinator.strategies.opening import OpenedPlan, UnknownStrategy, load, open_plan, unknown_option
from coordinator.strategies.parts import require_compatible_parts
from schemas.messages.federation_views import Federation, FederationPage
from schemas.messages.federations import FederationPlan, StrategyPlan
from schemas.names.spelling import NameRefused, new_name
from schemas.strategies.registry import strategy_names

router = APIRouter(prefix="/v1/federations", tags=["federations"])
log = logger(__name__)


@router.post(
    "",
    status_code=201,
    openapi_extra=takes(
        FederationPlan,
        example={"name": "clinics", "strategy": {"name": "fedmosaic", "options": {}}, "rounds": {"total": 6}},
    ),
    responses=answers(JsonMalformed, AuthMissing, Forbidden, NameLooksAlike, Invalid),
)
def create_federation(
    person: AsOperator,
    plan: Annotated[FederationPlan, Depends(json_body(FederationPlan))],
    database: TheDatabase,
) -> Federation:
    """Create a federation; the plan is stored with its defaults filled in."""
    resolved = _resolved(plan)
    with database.write() as session:
        still_person(session, person)
        row = store.create(session, resolved)
        audit_log.append(
            session, "federation-created", actor=person.id, subject=row.id, reason=_how_summed(resolved)
        )
        log.info("federation-created", federation=row.id, strategy=plan.strategy.name)
        return store.view(session, row)


@router.get("", responses=answers(AuthMissing, Forbidden))
def list_federations(
    person: AsPersonAnywhere, database: TheDatabase, after: After = None, limit: Limit = DEFAULT_LIMIT
) -> FederationPage:
    """List federations in which the caller has a role, oldest first."""
    with database.read() as session:
        return store.page(session, after=after, limit=limit, only=person.federations)


@router.get("/{fid}", responses=answers(AuthMissing, Forbidden, NotFound))
def show_federation(_: AsAuditor, federation_id: FederationId, database: TheDatabase) -> Federation:
    """Return a federation with its resolved plan, current round and claims."""
    with database.read() as session:
        return store.view(session, store.federation(session, federation_id))


def _resolved(plan: FederationPlan) -> FederationPlan:
    """Return the plan with the strategy's defaults, after checking that its parts fit together.

    Raises:
        Invalid: an unusable name, an unknown strategy or option, an adapter that cannot travel, meet a
            budget, be mixed or be summed, or signatures that cannot be compared.
    """
    try:
        plan = plan.model_copy(update={"name": new_name(plan.name)})
    except NameRefused as error:
        raise Invalid(f"name: {error}", field="name") from error
    check_adapter(plan)
    plan = plan.model_copy(update={"strategy": _resolved_strategy(plan.strategy)})
    opened = open_plan(plan)
    # All faults of a plan are reported at once.
    all_of(
        partial(check, opened)
        for check in (check_sum, require_compatible_parts, _check_private, _check_adapter_suits, _check_fit)
    )
    check_budget(opened)
    return opened.plan


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


def _how_summed(plan: FederationPlan) -> str | None:
    """Return for the audit log how updates are summed; None = clients send them in clear."""
    summed = plan.privacy.secure_sum
    if summed is None:
        return None
    return f"updates are summed: masking {summed.masking}, at least {summed.minimum} members"


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
