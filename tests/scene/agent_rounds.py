"""Rounds of one silo, step by step, and what it stored and sent in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage import round_folder
from client_agent.storage.round_folder import BRIEF, RECEIPT, SCORES_SENT, TRAINED, UPDATE, RoundFolder
from schemas.maths.adapter import Layout
from schemas.messages.recipes import SentRecipe
from schemas.messages.rounds import RoundBrief
from schemas.messages.updates import Receipt, UpdateManifest
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Envelope, slots, unpack
from schemas.wire.header import Slot
from schemas.wire.streams import decode, stream_slots
from tests.scene.agents import Enrolled, alone_plan, next_brief
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.rounds import tensors_of

Arrays = dict[str, NDArray[np.float32]]

PQ = {"kind": "pq", "rank": 4, "roles": ["v", "down"]}

LORA = {"kind": "lora", "rank": 2, "roles": ["v", "down"]}

SERVED = {"reference": "served", "density": 0.2, "values": "int8"}


class LoneSilo:
    """One silo in a federation of its own, played round by round."""

    def __init__(self, served: Served, enrol: Enrolled, **plan: Any) -> None:
        plan = {"strategy": {"name": "fedavg"}, "rounds": {"total": 9, "min_clients": 1}} | plan
        self.served = served
        self.federation_id = served.federation(**alone_plan(**({"adapter": PQ} | plan)))
        self.participant = enrol(self.federation_id)
        served.start_federation(self.federation_id)

    def brief(self) -> RoundBrief:
        return next_brief(self.participant)

    def run_rounds(self, rounds: int = 1) -> RoundFolder:
        """Take part in the next rounds; return the last one's folder."""
        for _ in range(rounds):
            brief = self.brief()
            assert take_part(self.participant, brief)
        return self.participant.workspace.rounds.open(brief.round)

    def repeat(self, folder: RoundFolder, *names: str) -> None:
        folder.forget(*names, SCORES_SENT)
        assert take_part(self.participant, RoundBrief.model_validate_json(folder.read(BRIEF)))

    def stored(self, layout: Layout) -> Arrays:
        path = f"/v1/federations/{self.federation_id}/clients/{self.participant.session.client_id}/adapter"
        return tensors_of(self.served.admin.get(path), layout)


def trained_tensors(folder: RoundFolder) -> Arrays:
    return TrainingResult.read(folder.path / TRAINED).adapter


def layout_of(folder: RoundFolder) -> Layout:
    return {name: values.shape for name, values in sorted(trained_tensors(folder).items())}


def opened_update(folder: RoundFolder) -> Envelope:
    body, signature = folder.read(UPDATE), {"signature": Slot((None,))}
    expected = {**slots(layout_of(folder)), **signature}
    coded = {**stream_slots(), **signature}
    encoding: Any = "zstd" if is_frame(body) else None
    return unpack(body, encoding=encoding, expected=expected, coded=coded, max_bytes=2**24)


def reference_of(folder: RoundFolder) -> str | None:
    """Return the digest of the reference of an update, None of a dense one."""
    with opened_update(folder) as envelope:
        recipe = envelope.manifest(UpdateManifest).recipe
    return str(recipe["against"]) if recipe else None


def update_difference(folder: RoundFolder) -> Arrays:
    """Return the decoded difference of an update."""
    with opened_update(folder) as envelope:
        sent = SentRecipe.model_validate(envelope.manifest(UpdateManifest).recipe)
        return dict(decode(envelope, layout_of(folder), sent.recipe))


def stored_tensors(folder: RoundFolder, name: str) -> Arrays:
    layout = layout_of(folder)
    with unpack(folder.read(name), encoding=None, expected=slots(layout), max_bytes=2**24) as envelope:
        return {tensor: envelope.read_float32(tensor) for tensor in layout}


def stored_receipt(folder: RoundFolder) -> Receipt:
    return Receipt.model_validate_json(folder.read(RECEIPT))


@contextmanager
def killed_at_write(monkeypatch: pytest.MonkeyPatch, name: str, *, is_written: bool) -> Iterator[None]:
    """Kill an agent when it writes a file of its round, before or after the file is on the disk.

    The test fails if the block ends without this write.
    """
    write = round_folder.write_durably

    def write_or_die(path: Path, content: bytes) -> None:
        if path.name != name or is_written:
            write(path, content)
        if path.name == name:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(round_folder, "write_durably", write_or_die)
        with pytest.raises(Killed):
            yield
