"""Trainers of silos: packages of the entry-point group `tessera.trainers`, found by name.

An entry point's name is the value of `trainer` in silo.toml. Its value is a module with `Options`
(`TrainerOptions`) and `Trainer` (a `LocalTrainer` made from them).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from client_agent.errors import AgentError
from schemas.maths.factors import State
from schemas.messages.faults import complaints
from schemas.messages.federations import AdapterPlan

if TYPE_CHECKING:
    from client_agent.training.trainer_task import TrainerTask

GROUP = "tessera.trainers"


class TrainerUnusable(AgentError):
    """A trainer is not installed or broken, or refuses its options, or does not suit the plan."""


class TrainerOptions(BaseModel):
    """Options of a trainer: the table `trainer_options` of silo.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalTrainer(ABC):
    """A method of local training in place of Tessera's own loop.

    Attributes:
        needs_peft: whether it trains peft's model or folder, which only an ordinary LoRA has.
    """

    needs_peft: ClassVar[bool] = False

    @property
    def learning_rate(self) -> float | None:
        """Return the trainer's own rate; None = the plan's, or the one that Tessera searches."""
        return None

    @abstractmethod
    def train(self, task: TrainerTask) -> State | Path:
        """Train for the steps of a round, and report each of them.

        Return the adapter's tensors under the names of its layout, or a folder with a PEFT checkpoint. What
        it returns, Tessera scores. When `task.stop()` is true it may return early, and is called again later.
        """


@dataclass(frozen=True, slots=True)
class OpenedTrainer:
    """A trainer with its options."""

    name: str
    options: TrainerOptions
    trainer: LocalTrainer

    def require_suitable(self, plan: AdapterPlan, obstacle: str | None) -> None:
        """Check that a plan's adapter has the trainer's form, and that nothing else stands in its way.

        Args:
            obstacle: what the plan's method does that the trainer cannot do, if anything.

        Raises:
            TrainerUnusable: the trainer does not suit the plan.
        """
        obstacles = [obstacle] if obstacle is not None else []
        if self.trainer.needs_peft and plan.kind != "lora":
            obstacles.append(f"has an adapter of kind {plan.kind}")
        if obstacles:
            raise TrainerUnusable(
                f"the plan's method {obstacles[0]}, which trainer {self.name!r} does not do; remove "
                "`trainer` from silo.toml, or ask the operator for another plan"
            )


def installed_trainers() -> dict[str, list[EntryPoint]]:
    """Return the entry points of each installed trainer, by its name; more than one is an ambiguity."""
    trainers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        same_name = trainers.setdefault(entry.name, [])
        if all(entry.value != listed.value for listed in same_name):
            same_name.append(entry)
    return trainers


def open_trainer(name: str | None, options: Mapping[str, JsonValue]) -> OpenedTrainer | None:
    """Import a trainer and make it from its options; None without a name.

    Raises:
        TrainerUnusable: there is none of this name, or several, or it cannot be imported or refuses options.
    """
    if name is None:
        return None
    module = _imported(name)
    try:
        parsed = module.Options.model_validate(dict(options))
    except ValidationError as error:
        facts = complaints(error, module.Options, "option")
        raise TrainerUnusable(f"trainer_options of trainer {name!r} are not usable: {facts}") from error
    try:
        trainer = cast(LocalTrainer, module.Trainer(parsed))
    except Exception as error:  # code of another package may raise any error
        raise TrainerUnusable(f"trainer {name!r} cannot be made: {error!r}") from error
    return OpenedTrainer(name, parsed, trainer)


def _imported(name: str) -> Any:
    installed = installed_trainers()
    if name not in installed:
        names = ", ".join(sorted(installed)) or "none"
        raise TrainerUnusable(
            f"there is no trainer {name!r} in this environment (installed: {names}); install its package, or "
            "remove `trainer` from silo.toml to train with Tessera's own loop"
        )
    if len(installed[name]) > 1:
        packages = " and ".join(entry.value for entry in installed[name])
        raise TrainerUnusable(f"trainer {name!r} is defined by {packages}: uninstall one")
    path = installed[name][0].value
    try:
        module = import_module(path)
    except Exception as error:  # code of another package may raise any error
        raise TrainerUnusable(
            f"trainer {name!r}: {path} cannot be imported ({error!r}); repair or reinstall the package"
        ) from error
    missing = {"Options", "Trainer"} - vars(module).keys()
    if missing:
        raise TrainerUnusable(f"trainer {name!r}: {path} does not define {', '.join(sorted(missing))}")
    return module
