"""A cache of alignment packs: each is made once, so that all federations of a study use the same frames."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_agent.alignment.fit_packs import aligned_pack, pivot_pack
from client_agent.alignment.pack import Pack
from client_agent.errors import StudyUnusable
from client_agent.model.loading import BaseModel
from schemas.messages.alignment import Anchor, Anchors
from schemas.messages.faults import complaints
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from schemas.user_files import read_text
from studies.code_fingerprint import code_of_packs
from studies.shared_files import SharedFiles

PACKS = "packs"
"""The folder of a comparison's packs."""

_PLACEHOLDER_FEDERATION = "study"


@dataclass(frozen=True, slots=True)
class PackCache:
    """Packs in files that workers share, named by the digest of all their inputs."""

    files: SharedFiles
    anchors: Sequence[Anchor]

    def pack(
        self,
        base: BaseModel,
        pivot: BaseModel,
        adapter: AdapterPlan,
        plan: AlignmentPlan,
        report_activity: Callable[[str], None],
    ) -> Pack:
        """Return the pack of a base model; make it first if missing, with other processes locked out.

        Raises:
            AlignmentImpossible: the pack cannot be made.
        """
        anchors = self.anchors[: plan.anchors]
        pivot_frames: Pack | None = None
        if base.slug != pivot.slug:
            pivot_frames = self.pack(pivot, pivot, adapter, plan, report_activity)
        name = f"{PACKS}/{base.slug}-{_digest(anchors, adapter, plan)}.safetensors"
        # Fitting takes minutes: another worker waits and reads, instead of doing it again.
        with self.files.locked(name):
            body = self.files.read(name)
            if body is None:
                report_activity(f"aligning {base.slug}")
                if pivot_frames is None:
                    fitted = pivot_pack(pivot, anchors, adapter, plan, _PLACEHOLDER_FEDERATION)
                else:
                    fitted = aligned_pack(
                        base, pivot, pivot_frames, anchors, adapter, plan, _PLACEHOLDER_FEDERATION
                    )
                body = fitted.to_body()
                self.files.write(name, body)
        return Pack.from_body(body)


def read_anchors(file: Path) -> Anchors:
    """Read a study's public anchor texts.

    Raises:
        StudyUnusable: the file is unreadable or not a file of anchor texts.
    """
    try:
        return Anchors.model_validate_json(read_text(file))
    except OSError as error:
        raise StudyUnusable(f"anchors: {file} cannot be read ({error.strerror}); check the path") from error
    except ValidationError as error:
        raise StudyUnusable(
            f"anchors: {file} is not a file of anchor texts: {complaints(error, Anchors)}"
        ) from error


def body_for_federation(pack: Pack, federation_id: str) -> bytes:
    """Return a pack's body with the federation's id in its manifest."""
    # A coordinator refuses the pack of another federation.
    return Pack(pack.tensors, pack.manifest.model_copy(update={"federation": federation_id})).to_body()


def _digest(anchors: Sequence[Anchor], adapter: AdapterPlan, plan: AlignmentPlan) -> str:
    """Return the digest of a pack's inputs: code, anchors, plan, and the adapter fields that place frames."""
    facts = [
        code_of_packs(),
        [anchor.model_dump() for anchor in anchors],
        # These do not change the frames, so methods that differ in them share a pack.
        adapter.model_dump(exclude={"scale", "bias", "private_rank", "same_architecture_rank"}, mode="json"),
        plan.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
