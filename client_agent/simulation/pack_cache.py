"""Make each alignment pack once and keep it: every federation of a study is given the same frames."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_agent.alignment.fit_packs import aligned_pack, pivot_pack
from client_agent.alignment.pack import Pack
from client_agent.errors import StudyUnusable
from client_agent.model.loading import BaseModel
from client_agent.simulation.code_fingerprint import code_of_packs
from client_agent.simulation.study import faults
from client_agent.storage.files import write_durably
from schemas.messages.alignment import Anchor, Anchors
from schemas.messages.federations import AdapterPlan, AlignmentPlan

_NOBODYS = "study"


@dataclass(frozen=True, slots=True)
class PackCache:
    """Packs on disk, named by everything they follow from."""

    folder: Path
    anchors: Sequence[Anchor]

    def pack(
        self,
        base: BaseModel,
        pivot: BaseModel,
        adapter: AdapterPlan,
        plan: AlignmentPlan,
        say: Callable[[str], None],
    ) -> Pack:
        """Give the pack of a base model, made now if it was not before; other processes wait meanwhile.

        Raises:
            AlignmentImpossible: it cannot be made.
        """
        anchors = self.anchors[: plan.anchors]
        of_pivot: Pack | None = None
        if base.slug != pivot.slug:
            of_pivot = self.pack(pivot, pivot, adapter, plan, say)
        file = self.folder / f"{base.slug}-{_digest(anchors, adapter, plan)}.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone_on(file.with_suffix(".lock")):
            if not file.exists():
                say(f"aligning {base.slug}")
                if of_pivot is None:
                    made = pivot_pack(pivot, anchors, adapter, plan, _NOBODYS)
                else:
                    made = aligned_pack(base, pivot, of_pivot, anchors, adapter, plan, _NOBODYS)
                write_durably(file, made.to_body())
        return Pack.from_body(file.read_bytes())


def read_anchors(file: Path) -> Anchors:
    """Read the public texts on which a study's base models are aligned.

    Raises:
        StudyUnusable: the file cannot be read or holds something else.
    """
    try:
        return Anchors.model_validate_json(file.read_bytes())
    except OSError as error:
        raise StudyUnusable(f"anchors: {file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise StudyUnusable(f"anchors: {file} holds no anchor texts: {faults(error)}") from error


def addressed(pack: Pack, federation: str) -> bytes:
    """Write a pack as that federation's."""
    return Pack(pack.tensors, pack.manifest.model_copy(update={"federation": federation})).to_body()


def _digest(anchors: Sequence[Anchor], adapter: AdapterPlan, plan: AlignmentPlan) -> str:
    """Name what frames follow from: code, anchors, plan, and of the adapter all that says where they are."""
    facts = [
        code_of_packs(),
        [anchor.model_dump() for anchor in anchors],
        adapter.model_dump(exclude={"scale", "private_rank", "same_architecture_rank"}, mode="json"),
        plan.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def _alone_on(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
