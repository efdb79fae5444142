"""Find the plan that a silo trains with: from a file, from its federation, or else the default plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_agent.errors import AgentError, AnswerUnreadable, NotEnrolled, PlanUnusable
from client_agent.identity.agent_folder import Membership, read_membership
from client_agent.identity.membership import connect_once
from client_agent.rounds.part import Part, Runner, obstacle
from client_agent.rounds.planned_parts import with_planned
from client_agent.rounds.strategy import load_strategy
from client_agent.settings import AgentSettings
from client_agent.storage.round_folder import BRIEF, RoundFolders, read_brief
from client_agent.training.trainers import OpenedTrainer, open_trainer
from client_agent.transport.client import CoordinatorApi
from schemas.messages.faults import complaints
from schemas.messages.federations import AdapterPlan, FederationPlan, SignaturePlan, TrainingPlan
from schemas.messages.recommendations import completed
from schemas.messages.rounds import RoundBrief
from schemas.user_files import parsed_json, read_text


@dataclass(frozen=True, slots=True)
class SiloPlan:
    """The settings of training and sketches, and their source; `guessed` without a federation's plan."""

    adapter: AdapterPlan
    training: TrainingPlan
    sketch: SignaturePlan
    source: str
    guessed: bool = False


def read_plan(file: Path) -> FederationPlan:
    """Read a federation's plan from a JSON file.

    As in `tessera federation create`, fields that the file does not name are those recommended for its
    strategy: a silo that trains alone has the adapter that the federation of this plan would have.

    Raises:
        PlanUnusable: the file cannot be read, or a field is invalid.
    """
    try:
        text = read_text(file)
        named = parsed_json(text)
        return FederationPlan.model_validate_json(
            json.dumps(completed(named)) if isinstance(named, dict) else text
        )
    except OSError as error:
        raise PlanUnusable(f"{file} cannot be read ({error.strerror}); pass a JSON file of a plan") from error
    except ValidationError as error:
        raise PlanUnusable(f"{file} is not a federation plan: {complaints(error, FederationPlan)}") from error
    except ValueError as error:
        raise PlanUnusable(f"{file} is not a federation plan ({error})") from error


def training_plan(settings: AgentSettings, file: Path | None) -> SiloPlan:
    """Return the plan of a file, else of the federation's round, open or on disk, else of the federation.

    It is the default one, marked as guessed, before enrolment and without an answer.

    Raises:
        PlanUnusable: the file is not a plan.
        SettingsUnusable: the membership is damaged.
        RoundUnreadable: the brief on disk is damaged, or of another version.
    """
    if file is not None:
        plan = read_plan(file)
        return SiloPlan(plan.adapter, plan.training, plan.signature, str(file))
    try:
        membership = read_membership(settings.folder)
    except NotEnrolled:
        return _guessed("assumed; the federation's plan is known after enrolment")
    # A round that is on disk may still be trained, under the plan that it began with.
    brief = _open_round(settings, membership) or _newest_on_disk(settings.folder / membership.federation_id)
    offered = brief or _offered_plan(settings, membership)
    if offered is None:
        return _guessed("assumed; the federation's plan is known when the coordinator answers")
    return SiloPlan(offered.adapter, offered.training, offered.signature, "the federation's plan")


def federation_plan(settings: AgentSettings, file: Path | None) -> FederationPlan | None:
    """Return the whole plan of a file, else of the federation; None before enrolment.

    Raises:
        PlanUnusable, AnswerUnreadable: it is not a plan.
        AgentError: the coordinator does not answer, or refuses.
    """
    if file is not None:
        return read_plan(file)
    try:
        membership = read_membership(settings.folder)
    except NotEnrolled:
        return None
    with connect_once(settings, membership) as api:
        return whole_plan(api, membership.federation_id)


def served_plan(settings: AgentSettings) -> bytes | None:
    """Return the federation's plan as served; None before enrolment.

    Raises:
        AgentError: the coordinator does not answer, or refuses.
    """
    try:
        membership = read_membership(settings.folder)
    except NotEnrolled:
        return None
    with connect_once(settings, membership) as api:
        return api.plan(membership.federation_id)


def whole_plan(api: CoordinatorApi, federation_id: str) -> FederationPlan:
    """Download a federation's plan. Raises as `parse_plan`."""
    return parse_plan(api.plan(federation_id))


def parse_plan(served: bytes) -> FederationPlan:
    """Parse a federation's plan as the coordinator serves it.

    Raises:
        AnswerUnreadable: it is not a plan.
    """
    try:
        # A newer coordinator may have fields that this agent does not know.
        return FederationPlan.model_validate_json(served, extra="ignore")
    except ValidationError as error:
        raise AnswerUnreadable("the federation's plan", complaints(error, FederationPlan)) from error


def require_trainer(settings: AgentSettings, plan: FederationPlan | None) -> str:
    """Import the trainer of the settings, if there is one, and return its name; check that it suits a plan.

    Raises:
        TrainerUnusable: it is not installed, refuses its options, or does not suit the plan.
        UnknownStrategy, StrategyOptionsInvalid: this agent is older than the plan.
    """
    trainer = open_trainer(settings.trainer, settings.trainer_options.model_extra or {})
    if trainer is None:
        return ""
    if plan is not None:
        strategy = load_strategy(plan.strategy.name, plan.strategy.options)
        require_trainer_suits(trainer, plan.adapter, with_planned(strategy.parts, plan.training))
    return trainer.name


def require_trainer_suits(trainer: OpenedTrainer, adapter: AdapterPlan, parts: Sequence[Part]) -> None:
    """Check that a trainer of the silo's own can run the local steps of a plan.

    Raises:
        TrainerUnusable: it cannot.
    """
    runner: Runner = "a PEFT trainer" if trainer.trainer.needs_peft else "a trainer"
    trainer.require_suitable(adapter, obstacle(parts, runner))


def _guessed(source: str) -> SiloPlan:
    return SiloPlan(AdapterPlan(), TrainingPlan(), SignaturePlan(), source, guessed=True)


def _open_round(settings: AgentSettings, membership: Membership) -> RoundBrief | None:
    try:
        with connect_once(settings, membership) as api:
            answer = api.current_round(membership.federation_id)
    except AgentError:
        return None
    return answer if isinstance(answer, RoundBrief) else None


def _offered_plan(settings: AgentSettings, membership: Membership) -> FederationPlan | None:
    """Return the federation's plan from the coordinator, before its first round; None if that fails."""
    try:
        with connect_once(settings, membership) as api:
            return whole_plan(api, membership.federation_id)
    except AgentError:
        return None


def _newest_on_disk(home: Path) -> RoundBrief | None:
    for folder in RoundFolders(home / "rounds").newest_first():
        if folder.has(BRIEF):
            return read_brief(folder)
    return None
