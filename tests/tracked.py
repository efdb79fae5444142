"""What a tracker recorded, read by its own library."""

from __future__ import annotations

from pathlib import Path


def recorded(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's files of the one run below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run_folder,) = {file.parent for file in folder.rglob("events.*")}
    events = EventAccumulator(str(run_folder))
    events.Reload()
    return {
        name: [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }
