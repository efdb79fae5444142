"""What a feature adds to a round: a `Part` has a hook for each place of a round that a feature may change.

A strategy names its parts in order (`AgentStrategy.parts`). The steps of a round call every hook of every
part and know no feature. Each hook does nothing by default. Parts are imported without torch: hooks that are
called with a model import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel

from client_agent.policy import SentKind
from schemas.maths.adapter import Layout
from schemas.maths.factors import State
from schemas.messages.federations import AdapterPlan
from schemas.messages.recipes import Recipe
from schemas.wire.budget import Marks
from schemas.wire.envelope import Array
from schemas.wire.quantise import Floats

if TYPE_CHECKING:
    from client_agent.adapters.base import Adapter, Penalty
    from client_agent.adapters.frames import Frames
    from client_agent.model.loading import BaseModel as LoadedModel
    from client_agent.rounds.encode_update import EncodedUpdate, UpdateInputs
    from client_agent.rounds.local_steps import RoundSteps
    from client_agent.rounds.opened_round import OpenedRound
    from client_agent.rounds.served_weights import StoredWeights
    from client_agent.rounds.train import LocalTraining
    from client_agent.storage.round_folder import RoundFolder
    from client_agent.training.loop import TrainingOutcome
    from client_agent.training.silo import Silo

Runner = Literal["a trainer", "a PEFT trainer", "torchrun", "private steps"]
"""Who may run the local steps in place of the agent's own loop on one device. A PEFT trainer is a trainer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What an adapter is put around, and where the files of the client are.

    Attributes:
        plan: the adapter, at the client's own rank.
        frames: those of P and Q; {} for an ordinary LoRA.
        seed: draws the first A.
        max_length: the most tokens of a text.
        home: the folder of the federation, or of the agent without one.
        served: served weights that will be loaded; None = a stored or a new adapter.
        stored: a trained adapter that will be loaded; None = served weights or a new adapter.
    """

    silo: Silo
    plan: AdapterPlan
    frames: Frames
    seed: int
    max_length: int
    home: Path
    served: StoredWeights | None = None
    stored: State | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a part does in one local training.

    Attributes:
        penalty: a term of the loss of every step; None = there is none.
        state: returns the adapter to send after the last step; None = it is the adapter's own state.
        finished: called once when the training is done.
    """

    penalty: Penalty | None = None
    state: Callable[[], State] | None = None
    finished: Callable[[], None] = field(default=lambda: None)


class Part:
    """One feature in a round of the agent.

    Attributes:
        action: what the feature does to local training, as it completes "the plan's method ...".
        excludes: the runners of local steps that this part rules out; by default all but the agent's own
            loop.
        sends: the kind of data beside the adapter that a policy may forbid; None = the part sends none.
        reads_anchors: whether the part needs the federation's public texts.
        adds_losses: whether the steps add the loss terms of other parts; the strategy declares the same.
        bounds_bytes: whether the part limits the bytes of an update.
        trained_adapters: how many adapters take all steps of a round, one after another; for studies.
    """

    action: ClassVar[str] = "adds a part to the round"
    excludes: ClassVar[frozenset[Runner]] = frozenset({"a trainer", "torchrun", "private steps"})
    sends: ClassVar[SentKind | None] = None
    reads_anchors: ClassVar[bool] = False
    adds_losses: ClassVar[bool] = True
    bounds_bytes: ClassVar[bool] = False
    trained_adapters: ClassVar[int] = 1

    # Before a round: layout and size of an update, from plan and profile alone.

    def adapter_plan(self, plan: AdapterPlan, state: State | None, lora_rank: int | None) -> AdapterPlan:
        """Return the plan of this client's adapter; `state` is the last one, `lora_rank` its first rank."""
        return plan

    def shortfall(self, layout: Layout, recipe: Recipe) -> str | None:
        """Return why no update of a layout fits the part's budget; None = an update fits."""
        return None

    def bytes_beside(self, work: OpenedRound) -> int:
        """Return an upper bound of the bytes that the part adds to an update."""
        return 0

    # After the join: what comes beside the weights.

    def download(self, work: OpenedRound) -> None:
        """Download and store what the part needs beside the weights of a round."""

    # With the model: local training, and every other place that puts the adapter around the model.

    def silo(self, silo: Silo) -> Silo:
        """Return the silo as it trains and is scored."""
        return silo

    def inject(self, setting: Setting) -> Adapter | None:
        """Put an adapter of the part's own kind around the base model; None = the plan's kind."""
        return None

    def wrap(self, adapter: Adapter, base: LoadedModel) -> Adapter:
        """Return the adapter with what the part puts around it; `remove` of the result removes both."""
        return adapter

    def prepare(self, adapter: Adapter, setting: Setting) -> None:
        """Prepare an injected adapter, before tensors are loaded."""

    @property
    def searched_as(self) -> BaseModel | None:
        """The options that change what is trained on; rates are searched for each of their values."""
        return None

    def continues_optimiser(self, adapter: Adapter, stored: State) -> bool:
        """Whether the optimiser state of the last round fits the adapter as it is now."""
        return True

    def begin(self, training: LocalTraining) -> Effect:
        """Begin local training: the adapter has the start of the round and the client's private tensors."""
        return Effect()

    def run(self, steps: RoundSteps) -> TrainingOutcome | None:
        """Run the local steps of a round in the part's own way; None = all at once.

        Raises:
            Stopped: the agent was stopped.
        """
        return None

    # After training: the update.

    def marks(
        self, round_number: int, private: State, delta: Mapping[str, Floats]
    ) -> tuple[Callable[[float], Marks], float] | None:
        """Return the choice of the values that are sent, by density, and the density; None = by size."""
        return None

    def update_tensors(self, folder: RoundFolder) -> dict[str, Array]:
        """Return the tensors of an update beside the adapter's."""
        return {}

    def encoded(self, inputs: UpdateInputs, encoded: EncodedUpdate) -> None:
        """Record facts of the encoded update."""


def obstacle(parts: Iterable[Part], runner: Runner) -> str | None:
    """Return what the first part does that `runner` cannot; None if it can run the steps."""
    runners = {runner, "a trainer"} if runner == "a PEFT trainer" else {runner}
    return next((part.action for part in parts if runners & part.excludes), None)
