"""The plan of a federation with every default."""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from schemas.maths.adapter import block_modules
from schemas.messages.base import Name, SharedModelSlug, Strict, field_error
from schemas.messages.recipes import WirePlan
from schemas.messages.sketches import SignatureDpPlan as SignatureDpPlan
from schemas.messages.sketches import SignatureKind as SignatureKind
from schemas.messages.sketches import SignaturePlan as SignaturePlan
from schemas.messages.sum_plan import SecureSumPlan as SecureSumPlan
from schemas.messages.training import Count as Count
from schemas.messages.training import Positive as Positive
from schemas.messages.training import ScoresPlan as ScoresPlan
from schemas.messages.training import TrainingPlan as TrainingPlan

Role = Literal["q", "k", "v", "o", "gate", "up", "down"]
ALL_ROLES: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")

RosterPolicy = Literal["pinned", "tofu", "server"]
_SHOWN = 8


def _is_off(value: float) -> bool:
    """Omit an option that is off from a plan, so that the digests of older plans stay."""
    return not value


class StrategyPlan(Strict):
    """The strategy and its options. The options are defined by the strategy."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=50)]
    """The name of the strategy: a file of Tessera, or an installed package."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The options of the strategy; the strategy defines and checks them."""


class AdapterPlan(Strict):
    """The trainable tensors of a client.

    `pq`: `P` (rank, rank) and `Q` (rank,) per (block, role), between frozen frames. `lora`: `A` (rank, d_in)
    and `B` (d_out, rank) per (layer, role).
    """

    kind: Literal["pq", "lora"] = "pq"
    """`pq` can be shared across base models, `lora` only among clients of the identical base model."""
    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    """The rank of P and Q, or of the ordinary LoRA."""
    scale: Positive = 2.0
    """The factor of the adapter's output."""
    rslora: bool = Field(default=False, exclude_if=_is_off)
    """`lora`: whether the factor is `scale` times the square root of `rank`, as in rsLoRA: alpha / sqrt(rank)
    instead of alpha / rank, with alpha = `scale` times `rank`.
    """
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.0, exclude_if=_is_off)
    """`lora`: the share of A's inputs that a training step sets to zero, drawn from `training.seed` and the
    round.
    """
    bias: bool = True
    """`pq`: whether `Q` trains. It acts as a bias of the layer's output, which inference servers refuse in
    adapters. True by default, because plans from before this field trained `Q`; false with `lora`.
    """
    blocks: Annotated[int, Field(ge=1, le=64)] = 4
    """`pq`: the number of blocks into which each model's layers are divided; each block has one P and Q per
    role.
    """
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ALL_ROLES
    """The linear layers of a transformer block that get an adapter."""
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """`pq`: the (block, role)s with P and Q, such as `b0.v`; null = all of `blocks` and `roles`."""
    private_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """`pq`: the rank of an ordinary LoRA of every (layer, role) that never leaves the client; 0 = none."""
    same_architecture_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """`pq`: the rank of an ordinary LoRA of every (layer, role) that is shared with clients of the identical
    base model; 0 = none.
    """

    @model_validator(mode="after")
    def _roles_are_distinct(self) -> Self:
        if len(set(self.roles)) != len(self.roles):
            raise field_error("must be distinct", "roles")
        return self

    @model_validator(mode="after")
    def _further_ranks_belong_to_pq(self) -> Self:
        for field in ("same_architecture_rank", "private_rank"):
            if self.kind == "lora" and getattr(self, field):
                raise field_error("must be 0 with kind lora; set rank", field)
        return self

    @model_validator(mode="after")
    def _options_of_lora(self) -> Self:
        if self.kind == "pq" and self.rslora:
            raise field_error(
                "must be false with kind pq: frames set the size of its output; set scale", "rslora"
            )
        if self.kind == "pq" and self.dropout:
            raise field_error("must be 0 with kind pq: its frozen A is fitted to whole inputs", "dropout")
        return self

    @model_validator(mode="after")
    def _lora_has_no_bias(self) -> Self:
        if self.kind == "lora" and self.bias:
            if "bias" in self.model_fields_set:
                raise field_error("must be false with kind lora, which has no bias; leave it out", "bias")
            object.__setattr__(self, "bias", False)
        return self

    @model_validator(mode="after")
    def _target_modules_are_the_plans(self) -> Self:
        requested, available = self.target_modules, block_modules(self.blocks, self.roles)
        if requested is None:
            return self
        if self.kind == "lora":
            raise field_error("must be null with kind lora; set roles", "target_modules")
        unknown = [module for module in requested if module not in available]
        if unknown:
            raise field_error(
                f"{unknown[0]} is not a (block, role) of blocks and roles: "
                f"{', '.join(available[:_SHOWN])}{', ...' if len(available) > _SHOWN else ''}",
                "target_modules",
            )
        if len(set(requested)) != len(requested):
            raise field_error("must be distinct", "target_modules")
        return self

    def modules(self, available: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the (block, role)s with P and Q, blocks first, of those that a model has; None = all."""
        everything = block_modules(self.blocks, self.roles)
        chosen = everything if self.target_modules is None else self.target_modules
        return tuple(
            name for name in everything if name in chosen and (available is None or name in available)
        )

    @property
    def factor(self) -> float:
        """Return the factor of the adapter's output: `scale`, times the root of `rank` with `rslora`."""
        return self.scale * sqrt(self.rank) if self.rslora else self.scale

    @property
    def travelling_lora_rank(self) -> int:
        """Return the rank of the `A`, `B` that are sent; 0 = none."""
        return self.rank if self.kind == "lora" else self.same_architecture_rank


class RoundsPlan(Strict):
    """The number of rounds, the clients required, deadlines, and the decay of stale updates."""

    total: Count = 10
    """The number of rounds after which the federation is finished."""
    min_clients: Count = 2
    """The number of clients that a round waits for."""
    quorum: Count | None = None
    """The number of updates that suffice at the deadline; null = `min_clients`."""
    collect_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """The deadline of a round, in seconds after its start."""
    max_staleness: Annotated[int, Field(ge=0)] = 3
    """For how many more rounds the last update of an absent client counts."""
    staleness_decay: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The factor by which the weight of an absent client's update falls per round."""

    @model_validator(mode="after")
    def _quorum_is_reachable(self) -> Self:
        if self.quorum is None:
            object.__setattr__(self, "quorum", self.min_clients)
        elif self.quorum > self.min_clients:
            raise field_error("must not be larger than min_clients", "quorum")
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
    """The largest error of a module, on pseudo-tasks that were not fitted, with which it is shared."""
    pivot_pack_by_any_client: bool = False
    """Whether any client that has waited half an hour for the pivot's pack makes it."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """The seed of random targets, pseudo-tasks and random frames."""


def _is_plain(plan: SecureSumPlan | None) -> bool:
    """Omit an absent secure sum from a plan, so that the digests of older plans stay."""
    return plan is None


class PrivacyPlan(Strict):
    """Authentication of clients, the minimum size of a mixture, and whether updates are summed."""

    allow_bearer_clients: bool = False
    """Whether clients without a key may enrol; they send a bearer token instead of signatures."""
    roster_policy: RosterPolicy = "server"
    """Which members' keys agents trust: those pinned in the silo (`pinned`), the first key of a name
    (`tofu`), or those of the coordinator (`server`).
    """
    min_voices: Count = 1
    """The fewest other members in a served mixture; below it a client keeps its own adapter. With 1, a
    member with one peer is served that peer's adapter.
    """
    secure_sum: SecureSumPlan | None = Field(default=None, exclude_if=_is_plain)
    """How updates are summed before the coordinator sees them; null = clients send their updates."""


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
    """What clients train."""
    rounds: RoundsPlan = RoundsPlan()
    """How many rounds there are, and when a round ends."""
    training: TrainingPlan = TrainingPlan()
    """How clients train."""
    scores: ScoresPlan = ScoresPlan()
    """How clients score their models."""
    signature: SignaturePlan = SignaturePlan()
    """The gradient sketches."""
    alignment: AlignmentPlan | None = None
    """Sharing across base models; null = none."""
    wire: WirePlan = WirePlan()
    """How updates and weights are encoded."""
    privacy: PrivacyPlan = PrivacyPlan()
    """Who may be a member, and how small a mixture may be."""
    limits: LimitsPlan = LimitsPlan()
    """Which updates are refused or scaled down."""

    @model_validator(mode="after")
    def _releases_are_counted(self) -> Self:
        dp = self.signature.dp
        if dp is not None and dp.releases is None:
            object.__setattr__(dp, "releases", self.rounds.total)
        return self

    @model_validator(mode="after")
    def _summed_updates_are_dense(self) -> Self:
        if self.privacy.secure_sum is not None and "recipe" not in self.wire.model_fields_set:
            fields = {name: getattr(self.wire, name) for name in self.wire.model_fields_set}
            object.__setattr__(self, "wire", WirePlan.model_validate(fields | {"recipe": "dense"}))
        return self

    @model_validator(mode="after")
    def _alignment_belongs_to_pq(self) -> Self:
        if self.alignment is not None and self.adapter.kind != "pq":
            raise field_error("must be pq with alignment: ordinary LoRA has no frames", "adapter", "kind")
        return self
