"""Supervised fine-tuning by TRL, on the tokens and the mask of answers that Tessera scores by."""

from __future__ import annotations

import copy
from typing import Any

from datasets import Dataset
from transformers import Trainer as LibraryTrainer
from trl import SFTConfig, SFTTrainer

from client_agent.training.trainer_task import TrainerTask

from .training import TrlOptions, TrlTrainer


class Options(TrlOptions):
    """The common options, and no others."""


class Trainer(TrlTrainer):
    """TRL's SFTTrainer."""

    def library_trainer(self, task: TrainerTask, model: Any, **arguments: Any) -> LibraryTrainer:
        rows = [
            {"input_ids": list(text.ids), "completion_mask": [int(is_answer) for is_answer in text.answer]}
            for text in task.texts
        ]
        return SFTTrainer(
            model=model,
            args=SFTConfig(completion_only_loss=True, **self.arguments(task)),
            train_dataset=Dataset.from_list(rows),
            processing_class=copy.deepcopy(task.base.tokenizer),  # TRL changes it
            **arguments,
        )
