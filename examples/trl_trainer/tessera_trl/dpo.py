"""Direct preference optimisation by TRL: the answer of an example is preferred to another of its options.

The reference is the adapter at the start of the round.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from datasets import Dataset
from transformers import Trainer as LibraryTrainer
from trl import DPOConfig, DPOTrainer

from client_agent.errors import DataInvalid
from client_agent.model.examples import Example
from client_agent.training.trainer_task import TrainerTask

from .training import TrlOptions, TrlTrainer


class Options(TrlOptions):
    """Options of DPO; `beta` is the weight of the distance from the reference."""

    learning_rate: float | None = 5e-6
    beta: float = 0.1


class Trainer(TrlTrainer):
    """TRL's DPOTrainer."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.beta = options.beta

    def library_trainer(self, task: TrainerTask, model: Any, **arguments: Any) -> LibraryTrainer:
        return DPOTrainer(
            model=model,
            args=DPOConfig(beta=self.beta, **self.arguments(task)),
            train_dataset=Dataset.from_list(pairs_of(task)),
            processing_class=copy.deepcopy(task.base.tokenizer),  # TRL changes it
            **arguments,
        )


def pairs_of(task: TrainerTask) -> list[dict[str, Any]]:
    """Return a preference for each example with options; the rejected one is drawn by the round's seed.

    Raises:
        DataInvalid: no example has options.
    """
    draw = random.Random(task.seed)
    with_options = [example for example in task.examples if len(set(example.options)) > 1]
    if not with_options:
        raise DataInvalid(
            "DPO needs examples with options, of which the answer is preferred to the others; use a format "
            "or a template with options"
        )
    return [pair_of(e, draw.choice([o for o in e.options if o != e.completion])) for e in with_options]


def pair_of(example: Example, rejected: str) -> dict[str, Any]:
    """Return a row as TRL reads it: texts, or the messages of a chat."""
    if not example.turns:
        return {"prompt": example.prompt, "chosen": example.completion, "rejected": rejected}
    return {
        "prompt": [{"role": turn.role, "content": turn.content} for turn in example.turns],
        "chosen": [{"role": "assistant", "content": example.completion}],
        "rejected": [{"role": "assistant", "content": rejected}],
    }
