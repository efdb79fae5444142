"""The options of training that a silo decides, beside the federation's plan."""

from __future__ import annotations

from dataclasses import dataclass

from client_agent.settings import OptimizerName


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Memory and speed of local training, which are the silo's own; what is learnt is the plan's."""

    optimizer: OptimizerName = "adamw"
    packing: bool = False


DEFAULT_OPTIONS = TrainingOptions()
