"""The difference of new weights to those served before: the values that clients reconstruct, and its body."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.storage.payloads import StagedPayload
from coordinator.storage.staging import Staging
from schemas.maths.adapter import Layout
from schemas.messages.recipes import Recipe
from schemas.messages.updates import WeightsManifest
from schemas.wire.envelope import pack
from schemas.wire.quantise import Floats
from schemas.wire.served_difference import DifferenceWriter

Read = Callable[[str], Floats]


class Difference:
    """The difference of weights for a round to earlier ones, encoded while their tensors pass."""

    def __init__(self, recipe: Recipe, round_number: int) -> None:
        self._recipe = recipe
        self._writer = DifferenceWriter(recipe, "weights", round_number)

    def rounded(self, layout: Layout, values: Read, reference: Read) -> Iterator[Floats]:
        """Yield the tensors of a layout as clients reconstruct them.

        Raises:
            NotEncodable: a value is too far from its reference.
        """
        for name in layout:
            yield self._writer.add(name, values(name), reference(name))

    def stage(self, staging: Staging, manifest: WeightsManifest) -> StagedPayload:
        """Write the body of all tensors so far as an unpublished payload.

        `manifest` is that of the weights of any client that shares the difference.
        """
        members = {"client": "", "recipe": self._recipe.model_dump(mode="json")}
        tensors = self._writer.streams().tensors
        return staging.stage_body(pack(tensors, manifest.model_copy(update=members), compress=True))
