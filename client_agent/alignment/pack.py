"""An alignment pack: the frames of one base model and their manifest, and their body on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from client_agent.adapters.frames import Frame, frame_of
from client_agent.errors import AlignmentImpossible
from schemas.maths.adapter import module_name
from schemas.messages.alignment import AlignmentManifest
from schemas.messages.federations import ALL_ROLES
from schemas.wire.compress import is_frame
from schemas.wire.envelope import Array, Encoding, pack, unpack
from schemas.wire.errors import BodyRefused
from schemas.wire.header import Expected, Slot

if TYPE_CHECKING:
    from client_agent.model.loading import BaseModel

OFFSETS = "offsets"
_MOST_BLOCKS = 64
_MOST_BYTES = 2**33


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors `b0.q.A` (r, d_in) and `.B` (d_out, r) of every (block, role), float32.

    The pivot's pack also has responses to the anchors: `b0.q.z` (tokens, r), `.g` (answer tokens, r),
    float16, and `offsets` (tokens, 3) int32: anchor, start, end.
    """

    tensors: Mapping[str, Array]
    manifest: AlignmentManifest

    def frames(self, base: BaseModel) -> dict[str, Frame]:
        """Return the frames of the selected (block, role) for their base model.

        Raises:
            AlignmentImpossible: the pack belongs to another base model.
        """
        if self.manifest.base_model != base.slug:
            raise AlignmentImpossible(
                f"this alignment pack is of {self.manifest.base_model}, and the model here is "
                f"{base.slug}; pass the pack of this base model"
            )
        return {
            name: frame_of(self.tensors[f"{name}.A"], self.tensors[f"{name}.B"])
            for name in self.manifest.selected
        }

    def to_body(self) -> bytes:
        return pack(self.tensors, self.manifest, compress=True)

    @classmethod
    def from_body(cls, body: bytes) -> Self:
        """Parse a body, compressed or not.

        Raises:
            AlignmentImpossible: the body is malformed, or lacks a tensor that its manifest selects.

        """
        encoding: Encoding | None = "zstd" if is_frame(body) else None
        try:
            with unpack(body, encoding=encoding, expected=_expected(), max_bytes=_MOST_BYTES) as envelope:
                manifest = envelope.manifest(AlignmentManifest)
                parsed = cls({name: envelope.read(name) for name in envelope.names}, manifest)
        except BodyRefused as refusal:
            raise AlignmentImpossible(
                f"unreadable alignment pack ({refusal}); ask the operator to replace it"
            ) from refusal
        lacking = [n for n in manifest.selected if not {f"{n}.A", f"{n}.B"} <= parsed.tensors.keys()]
        if lacking:
            raise AlignmentImpossible(
                f"the alignment pack lacks frames of {lacking[0]}; ask the operator to replace it"
            )
        return parsed


def _expected() -> Expected:
    exact, half = frozenset({"F32"}), frozenset({"F16", "F32"})
    slots = {OFFSETS: Slot((None, 3), frozenset({"I32"}), optional=True)}
    for block in range(_MOST_BLOCKS):
        for role in ALL_ROLES:
            for tensor, dtypes in (("A", exact), ("B", exact), ("z", half), ("g", half)):
                slots[f"{module_name(block, role)}.{tensor}"] = Slot((None, None), dtypes, optional=True)
    return slots
