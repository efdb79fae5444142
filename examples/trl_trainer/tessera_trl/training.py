"""The common part of both trainers: TRL's arguments, the optimiser, steps, checkpoints and the result."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer as LibraryTrainer
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from client_agent.errors import Stopped
from client_agent.training.optimiser import learning_rate_factor
from client_agent.training.trainer_task import TrainerTask
from client_agent.training.trainers import LocalTrainer, TrainerOptions


class TrlOptions(TrainerOptions):
    """Options of both trainers."""

    learning_rate: float | None = None  # by default the plan's
    checkpoint_steps: int = 50  # how many steps a killed agent repeats at most


class TrlTrainer(LocalTrainer):
    """A round's training by one of TRL's trainers."""

    needs_peft: ClassVar[bool] = True

    def __init__(self, options: TrlOptions) -> None:
        self.options = options

    @property
    def learning_rate(self) -> float | None:
        return self.options.learning_rate

    @abstractmethod
    def library_trainer(self, task: TrainerTask, model: Any, **arguments: Any) -> LibraryTrainer:
        """Return TRL's trainer of a model; `arguments` are those of every trainer of the library."""

    def train(self, task: TrainerTask) -> Path:
        with task.peft_model() as model:
            trainer = self.library_trainer(
                task, model, optimizers=optimiser_of(task, model), callbacks=[Steps(task)]
            )
            trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints(task))))
            if trainer.state.global_step < task.plan.steps and task.stop():
                raise Stopped
            cast(Any, model).save_pretrained(task.folder / "result", selected_adapters=["default"])
        return task.folder / "result"

    def arguments(self, task: TrainerTask) -> dict[str, Any]:
        """Return the arguments of TRL that the plan sets, the same for all of its trainers."""
        plan = task.plan
        return {
            "output_dir": str(checkpoints(task)),
            "max_steps": plan.steps,
            "per_device_train_batch_size": plan.batch_size,
            "gradient_accumulation_steps": plan.accumulation,
            "activation_checkpointing": plan.gradient_checkpointing,
            "max_grad_norm": plan.max_grad_norm,
            "max_length": plan.max_length,
            "seed": task.seed,
            "bf16": task.base.device.type == "cuda",
            "use_cpu": task.base.device.type == "cpu",
            "logging_steps": 1,
            "save_strategy": "steps",
            "save_steps": self.options.checkpoint_steps,
            "save_total_limit": 1,
            "report_to": "none",
            "disable_tqdm": True,
        }


class Steps(TrainerCallback):
    """Reports each step, and stops the library's trainer with a checkpoint when the agent is to stop."""

    def __init__(self, task: TrainerTask) -> None:
        self.task = task
        self.tokens = 0

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if logs is not None and "loss" in logs:
            total = int(logs.get("num_tokens", 0))
            self.task.report(state.global_step, logs["loss"], max(0, total - self.tokens))
            self.tokens = total

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.task.stop():
            control.should_save = control.should_training_stop = True


def optimiser_of(task: TrainerTask, model: Any) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return AdamW of the adapter, under the plan's schedule over all rounds."""
    plan = task.plan
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=task.learning_rate, weight_decay=plan.weight_decay)
    before, total = (task.round_number - 1) * plan.steps, task.total_rounds * plan.steps
    return optimiser, LambdaLR(optimiser, lambda step: learning_rate_factor(before + step, plan, total))


def checkpoints(task: TrainerTask) -> Path:
    folder = task.folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    return folder
