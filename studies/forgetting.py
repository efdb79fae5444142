"""The forgetting of a client's model: its loss on public texts minus that of the bare base model."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.model.examples import Example, encode_for, probe_set
from client_agent.model.loading import BaseModel
from client_agent.model.quantization import precision_of
from client_agent.model.tokens import Encoded
from client_agent.training.evaluate import mean_loss
from schemas.messages.alignment import Anchor


class Forgetting:
    """The loss of models on `count` public texts at most, in full, minus that of the bare base model."""

    def __init__(self, anchors: Sequence[Anchor], count: int, max_length: int) -> None:
        texts = [Example("", anchor.prompt + anchor.answer) for anchor in anchors]
        self._texts = probe_set(texts, count)
        self._max_length = max_length
        self._encoded: dict[str, Sequence[Encoded]] = {}
        self._bare: dict[str, float] = {}

    def measure_bare(self, base: BaseModel) -> None:
        """Measure a base model that has no adapter at the moment; once per model and precision."""
        if (key := _key(base)) not in self._bare:
            self._encoded[key] = encode_for(base, self._texts, self._max_length)
            self._bare[key] = mean_loss(base, self._encoded[key])

    def of(self, base: BaseModel) -> float:
        """Return the loss of a measured base model, with the adapter that it has now, minus the bare loss."""
        key = _key(base)
        return mean_loss(base, self._encoded[key]) - self._bare[key]


def _key(base: BaseModel) -> str:
    return f"{base.slug}, {precision_of(base.model)}"
