"""Several processes of one agent, which torchrun started: rank 0 is the agent, the others follow it.

Imports torch when there are several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from client_agent.errors import SettingsUnusable

if TYPE_CHECKING:
    from client_agent.settings import AgentSettings
    from client_agent.training.ranks import Leader


def torchrun_rank() -> int | None:
    """Return this process's rank among those that torchrun started; None if it is alone."""
    # WORLD_SIZE alone is not enough: schedulers such as SLURM set it for other purposes.
    is_shared = "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ["RANK"]) if is_shared else None


@contextmanager
def led(settings: AgentSettings) -> Iterator[tuple[AgentSettings, Leader | None]]:
    """Lead the processes of torchrun, if it started this one; yield the settings of this rank.

    Raises:
        SettingsUnusable: see `settings_of_rank`.
    """
    if torchrun_rank() is None:
        yield settings, None
        return
    from client_agent.training.ranks import Leader
    from client_agent.training.silo import device_named

    settings = settings_of_rank(settings)
    with Leader.joined(device_named(settings.device)) as leader:
        yield settings, leader


def follows(settings: AgentSettings) -> bool:
    """Follow rank 0 to its end, if this process is another rank of torchrun; return whether it is.

    Raises:
        RankLost: rank 0 ended.
        AgentError: the device or the model does not work.
    """
    if not torchrun_rank():
        return False
    from client_agent.rounds.follower import follow

    follow(settings_of_rank(settings))
    return True


def settings_of_rank(settings: AgentSettings) -> AgentSettings:
    """Return the settings with the device of this process: each rank has a GPU of its own, or all the CPU.

    Raises:
        SettingsUnusable: the settings name one GPU for all, or a trainer.
    """
    if settings.trainer is not None:
        raise SettingsUnusable(
            f"trainer {settings.trainer!r} and torchrun: a trainer starts processes itself; use only "
            "one of them"
        )
    if settings.device not in ("auto", "cuda", "cpu"):
        raise SettingsUnusable(
            f"device {settings.device} under torchrun: set auto, cuda or cpu; each rank has a GPU"
        )
    import torch

    if settings.device == "cpu" or not torch.cuda.is_available():
        return settings
    return settings.model_copy(update={"device": f"cuda:{os.environ['LOCAL_RANK']}"})
