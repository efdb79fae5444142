"""The plan of a federation with every default."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, StrictFloat, StrictInt, model_validator

from schemas.messages.adapter_plan import ALL_ROLES as ALL_ROLES
from schemas.messages.adapter_plan import AdapterPlan as AdapterPlan
from schemas.messages.adapter_plan import Role as Role
from schemas.messages.base import Name, SharedModelSlug, Strict, field_error
from schemas.messages.private_training import PrivateTrainingPlan as PrivateTrainingPlan
from schemas.messages.recipes import WirePlan
from schemas.messages.sketches import SignatureDpPlan as SignatureDpPlan
from schemas.messages.sketches import SignaturePlan as SignaturePlan
from schemas.messages.sum_plan import SecureSumPlan as SecureSumPlan
from schemas.messages.training import Count as Count
from schemas.messages.training import Positive as Positive
from schemas.messages.training import ScoresPlan as ScoresPlan
from schemas.messages.training import TrainingPlan as TrainingPlan

RosterPolicy = Literal["pinned", "tofu", "server"]


class StrategyPlan(Strict):
    """The strategy and its options. The options are defined by the strategy."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=50)]
    """The name of the strategy: a file of Tessera, or an installed package."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The options of the strategy; the strategy defines and checks them."""


def _share_of_all_to_null(sample: object) -> object:
    """Return null for a share of 1.0, which is every client; 1 is one client."""
    return None if isinstance(sample, float) and sample == 1.0 else sample


Sample = Annotated[
    Annotated[StrictInt, Field(ge=1)] | Annotated[StrictFloat, Field(gt=0, lt=1)] | None,
    BeforeValidator(_share_of_all_to_null),
]


class RoundsPlan(Strict):
    """The number of rounds, the clients required, deadlines, and the decay of stale updates."""

    total: Count = 10
    """The number of rounds after which the federation is finished."""
    min_clients: Count = 2
    """The number of clients that a round waits for."""
    quorum: Count | None = None
    """The number of updates with which a round is published at its deadline; null = `min_clients`."""
    collect_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """The deadline of a round, in seconds after its start."""
    max_staleness: Annotated[int, Field(ge=0)] = 3
    """The number of further rounds in which the last update of an absent client counts."""
    staleness_decay: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The factor by which the weight of an absent client's update is multiplied per round."""
    sample: Sample = None
    """The number of clients that are drawn for a round, or their share below 1; null = all take part. The
    coordinator draws them by `training.seed`; the others wait for the next round.
    """

    @model_validator(mode="after")
    def _quorum_is_reachable(self) -> Self:
        if self.quorum is None:
            # Resolved when the plan is stored, so that a later default changes no federation.
            object.__setattr__(self, "quorum", self.min_clients)
        elif self.quorum > self.min_clients:
            raise field_error("must not be larger than min_clients", "quorum")
        if isinstance(self.sample, int) and self.sample < self.min_clients:
            raise field_error(f"must be a share, or min_clients ({self.min_clients}) or more", "sample")
        return self

    @property
    def needed_updates(self) -> int:
        return self.quorum if self.quorum is not None else self.min_clients


class AlignmentPlan(Strict):
    """Alignment of P and Q across architectures.

    The pivot's pack comes from an operator or from a client of the pivot's base model.
    """

    pivot: SharedModelSlug
    """The slug of the base model that every agent loads; `tessera agent check` prints it."""
    anchors: Annotated[int, Field(ge=1, le=100_000)] = 1024
    """The number of public anchor texts that packs are fitted on."""
    frames: Literal["pca-tok", "random"] = "pca-tok"
    """`pca-tok`: fitted on anchor texts; `random`: from `seed`, not aligned, as a control."""
    max_error: Positive = 0.85
    """The largest error, on held-out pseudo-tasks, with which a module is shared."""
    pivot_pack_by_any_client: bool = False
    """Whether any client that has waited half an hour for the pivot's pack makes it."""
    require_passed: bool = False
    """Whether a base model shares with others only once its pack has passed `tessera agent alignment-test`;
    until then it shares with clients of the identical base model. The pivot's pack needs no test.
    """
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of random targets, pseudo-tasks and random frames."""

    @model_validator(mode="after")
    def _a_test_can_be_passed(self) -> Self:
        if self.require_passed and self.frames == "random":
            raise field_error("must be false with random frames, which are not aligned", "require_passed")
        return self


class PrivacyPlan(Strict):
    """Authentication of clients, the minimum size of a mixture, and whether updates are summed."""

    allow_bearer_clients: bool = False
    """Whether clients without a key may enrol; they send a bearer token instead of signatures."""
    roster_policy: RosterPolicy = "server"
    """The keys of members that agents trust: those pinned in the silo (`pinned`), the first key of a name
    (`tofu`), or those of the coordinator (`server`).
    """
    min_voices: Count = 1
    """The smallest number of other members in a served mixture; below it a client keeps its own adapter. With
    1, a member with one peer can compute that peer's adapter.
    """
    secure_sum: SecureSumPlan | None = None
    """The secure sum of updates, before the coordinator sees them; null = clients send their updates."""
    training: PrivateTrainingPlan | None = None
    """Differential privacy of training, and so of updates; null = none."""


class LimitsPlan(Strict):
    """Limits of an update."""

    max_update_bytes: Annotated[int, Field(ge=1024, le=2**40)] = 64 * 2**20
    """The largest encoded update, in bytes."""
    max_norm: Positive = 1e4
    """The largest L2 norm over all adapter tensors; larger updates are refused."""
    clip_norm: Positive | None = None
    """The largest L2 norm of the change since the seeded start; larger changes are scaled down to it. null =
    none.
    """
    max_examples: Count = 100_000
    """The cap on the number of examples, which clients report themselves and by which some strategies weight
    them.
    """


class FederationPlan(Strict):
    """The plan of a federation; everything except `name` and `strategy.name` has a default."""

    name: Name
    """The name that people see: letters, digits, spaces, `-`, `_` and `.`, in one script."""
    strategy: StrategyPlan
    """The federated method."""
    adapter: AdapterPlan = AdapterPlan()
    """The trainable tensors of clients."""
    rounds: RoundsPlan = RoundsPlan()
    """The number of rounds, and the end of a round."""
    training: TrainingPlan = TrainingPlan()
    """The local training of clients."""
    scores: ScoresPlan = ScoresPlan()
    """The scoring of clients' models."""
    signature: SignaturePlan = SignaturePlan()
    """The gradient sketches."""
    alignment: AlignmentPlan | None = None
    """Sharing across base models; null = none."""
    wire: WirePlan = WirePlan()
    """The encoding of updates and weights."""
    privacy: PrivacyPlan = PrivacyPlan()
    """Who may be a member, and how small a mixture may be."""
    limits: LimitsPlan = LimitsPlan()
    """The limits above which updates are refused or scaled down."""

    @model_validator(mode="after")
    def _default_releases(self) -> Self:
        dp = self.signature.dp
        if dp is not None and dp.releases is None:
            # One sketch per round shares the budget.
            object.__setattr__(dp, "releases", self.rounds.total)
        return self

    @model_validator(mode="after")
    def _private_training_fits_the_plan(self) -> Self:
        private = self.privacy.training
        if private is None:
            return self
        if self.training.learning_rate == "auto":
            raise field_error(
                "must be a number with privacy.training: the search trains without noise",
                "training",
                "learning_rate",
            )
        if self.signature.dp is None and self.privacy.secure_sum is None:
            raise field_error(
                "must be set with privacy.training: sketches reveal the same examples", "signature", "dp"
            )
        if private.steps is None:
            # One more round, for steps that are repeated after a crash or in place of an abandoned round.
            steps = (self.rounds.total + 1) * self.training.steps
            object.__setattr__(private, "steps", steps)
        elif private.steps < self.training.steps:
            raise field_error(
                f"must be {self.training.steps} or more, the training.steps of one round",
                "privacy",
                "training",
                "steps",
            )
        return self

    @model_validator(mode="after")
    def _summed_updates_are_dense(self) -> Self:
        if self.privacy.secure_sum is not None and "recipe" not in self.wire.model_fields_set:
            # All members of a sum encode all values alike.
            fields = {name: getattr(self.wire, name) for name in self.wire.model_fields_set}
            object.__setattr__(self, "wire", WirePlan.model_validate(fields | {"recipe": "dense"}))
        return self

    @model_validator(mode="after")
    def _drawn_clients_need_no_pivot(self) -> Self:
        is_fitted = self.alignment is not None and self.alignment.frames != "random"
        if self.rounds.sample is not None and is_fitted:
            raise field_error(
                "must be null with alignment: the maker of the pivot's pack may not be drawn",
                "rounds",
                "sample",
            )
        return self

    @model_validator(mode="after")
    def _alignment_belongs_to_pq(self) -> Self:
        if self.alignment is not None and self.adapter.kind != "pq":
            raise field_error("must be pq with alignment: ordinary LoRA has no frames", "adapter", "kind")
        return self
