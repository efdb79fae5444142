"""Training killed by SIGKILL resumes from the stored prefix, to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch

from client_agent.adapters.inject import inject_lora
from client_agent.model.loading import load_base_model
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.checkpoint import TrainingCheckpoint
from tests.scene.local_training import train_examples
from tests.unit.client_agent.model.test_frozen_prefix import calls_of_the_lowest_layer
from tests.unit.client_agent.training.checkpointed import DROPOUT, HOUR, MODEL, PLAN, chat

pytestmark = pytest.mark.slow

EXAMPLES = 24
CHILD = """
import sys
from pathlib import Path
from tests.unit.client_agent.training.test_killed_prefix import train_until_killed
train_until_killed(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


def train_until_killed(folder: Path, number: int, place: str) -> None:
    """Train, and announce each step; the `number`th file of the store is announced and never finished."""
    torch.set_num_threads(1)
    if number:
        _never_finish(number, place)
    train_to_end(folder, announce=True)


def _never_finish(number: int, place: str) -> None:
    """Stop with half a file written, or before the complete file is renamed."""
    from client_agent.storage import prefix_store

    opened, written = os.fdopen, 0

    class HalfWritten:
        def __init__(self, handle: int) -> None:
            self._stream = opened(handle, "wb")

        def __enter__(self) -> HalfWritten:
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def write(self, content: bytes) -> None:
            nonlocal written
            written += 1
            if written < number:
                self._stream.write(content)
                return
            self._stream.write(content[: len(content) // 2] if place == "half" else content)
            self._stream.flush()
            print(place, flush=True)
            time.sleep(HOUR)

    class Os:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fdopen(self, handle: int, _: str) -> HalfWritten:
            return HalfWritten(handle)

    prefix_store.os = Os()


def train_to_end(
    folder: Path, *, announce: bool = False, every_seconds: float = 0.0
) -> tuple[Sequence[float], bytes, int, list[int]]:
    """Train to the end; return losses, tensors, the texts that the lowest layer read, and the steps done."""
    base = load_base_model(str(MODEL), device=torch.device("cpu"))
    base.prefix.store = PrefixStore(folder / "prefixes", 2**24)
    steps: list[int] = []

    def on_step() -> bool:
        if announce:
            print("step", flush=True)
        return False

    with inject_lora(base, DROPOUT) as adapter, calls_of_the_lowest_layer(base) as texts:
        outcome = train_examples(
            base,
            adapter,
            chat(EXAMPLES),
            PLAN,
            stop=on_step,
            on_step=lambda step: steps.append(step.number),
            checkpoint=TrainingCheckpoint(folder / "partial", every_seconds),
        )
        return outcome.losses, safetensors.numpy.save(adapter.state()), sum(texts), steps


def killed(folder: Path, until: Sequence[str], number: int = 0, place: str = "-") -> list[Path]:
    """Kill a training after the last of these lines; return the files that its store has finished."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(number), place], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in until]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert lines == list(until)
    assert process.returncode == -signal.SIGKILL
    return [path for path in (folder / "prefixes").rglob("*") if path.is_file() and path.name[0] != "."]


def unfinished(folder: Path) -> list[Path]:
    return list((folder / "prefixes").rglob(".new-*"))


def test_killed_training_reads_the_stored_prefix(tmp_path: Path) -> None:
    losses, tensors, texts, _ = train_to_end(tmp_path / "whole")
    assert texts == EXAMPLES  # each was computed once, in the whole training
    files = killed(tmp_path / "killed", ["step"] * 8)
    assert len(files) == EXAMPLES
    resumed = train_to_end(tmp_path / "killed")
    assert resumed == (losses, tensors, 0, resumed[3])
    assert resumed[3][0] > 1


@pytest.mark.parametrize("place", ["half", "unnamed"])
def test_unfinished_or_cut_prefix_file_is_computed_again(tmp_path: Path, place: str) -> None:
    losses, tensors, _, _ = train_to_end(tmp_path / "whole")
    files = killed(tmp_path / "killed", ["step", "step", place], number=13, place=place)
    assert len(files) == 12
    assert len(unfinished(tmp_path / "killed")) == 1
    cut = files[5]  # as a power cut may leave a file that was written without fsync
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    resumed = train_to_end(tmp_path / "killed")
    assert resumed[:3] == (losses, tensors, EXAMPLES - len(files) + 1)
