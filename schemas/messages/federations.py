"""The plan of a federation with every default."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from schemas.maths.adapter import block_modules
from schemas.messages.base import Name, SharedModelSlug, Strict, field_error
from schemas.messages.recipes import WirePlan
from schemas.messages.training import Count as Count
from schemas.messages.training import Positive as Positive
from schemas.messages.training import ScoresPlan as ScoresPlan
from schemas.messages.training import TrainingPlan as TrainingPlan

Role = Literal["q", "k", "v", "o", "gate", "up", "down"]
ALL_ROLES: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")

SignatureKind = Literal["gradient", "representation"]
RosterPolicy = Literal["pinned", "tofu", "server"]
_SHOWN = 8


class StrategyPlan(Strict):
    """The strategy and its options. The options are defined by the strategy."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=50)]
    options: dict[str, JsonValue] = Field(default_factory=dict)


class AdapterPlan(Strict):
    """The trainable tensors of a client.

    `kind` `pq`: `P` (rank, rank) and `Q` (rank,) per (block, role) between frozen frames; `lora`: ordinary
    `A` (rank, d_in), `B` (d_out, rank) per (layer, role). `scale` multiplies the adapter's output.

    `bias` false: there is no `Q`, which acts as a bias of the layer's output and which servers of adapters
    refuse. The default is true, because plans from before this field trained `Q`; with `lora` it is false.

    `target_modules` limits `P`, `Q` to some (block, role)s, such as `b0.v`; null = all. Beside them an
    ordinary LoRA of every (layer, role) may train: `same_architecture_rank` ranks are shared with clients of
    the identical base model, `private_rank` ranks never leave the client; 0 = none.
    """

    kind: Literal["pq", "lora"] = "pq"
    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    scale: Positive = 2.0
    bias: bool = True
    blocks: Annotated[int, Field(ge=1, le=64)] = 4
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ALL_ROLES
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    private_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    same_architecture_rank: Annotated[int, Field(ge=0, le=1024)] = 0

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

    def modules(self, roles: Collection[str]) -> tuple[str, ...]:
        """Return the (block, role)s with P and Q in a model with these roles, blocks first."""
        everything = block_modules(self.blocks, [role for role in self.roles if role in roles])
        targets = everything if self.target_modules is None else self.target_modules
        return tuple(name for name in everything if name in targets)

    @property
    def travelling_lora_rank(self) -> int:
        """Return the rank of the `A`, `B` that are sent; 0 = none."""
        return self.rank if self.kind == "lora" else self.same_architecture_rank


class RoundsPlan(Strict):
    """The number of rounds, the clients required, deadlines, and the decay of stale updates.

    `quorum` (default `min_clients`) updates are needed to aggregate at the deadline, `collect_seconds` after
    the start; an update counts for `max_staleness` more rounds, each time multiplied by `staleness_decay`.
    """

    total: Count = 10
    min_clients: Count = 2
    quorum: Count | None = None
    collect_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    max_staleness: Annotated[int, Field(ge=0)] = 3
    staleness_decay: Annotated[float, Field(gt=0, le=1)] = 0.5

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


class SignatureDpPlan(Strict):
    """(epsilon, delta)-differential privacy of every record, against any reader of a client's sketches.

    The budget `epsilon` is divided over `releases`, one per round, null = the number of rounds; once it is
    spent, the last sketch is sent again. `minimum_sample` is the smallest expected number of records per
    release: with fewer, a sketch is mostly noise.
    """

    epsilon: Annotated[float, Field(ge=0.01, le=10)]
    delta: Annotated[float, Field(ge=1e-8, le=1e-2)] = 1e-5
    releases: Annotated[int, Field(ge=1, le=100_000)] | None = None
    minimum_sample: Count = 64


_DIM_WITH_DP = 64
_SAMPLE_WITH_DP = 256


class SignaturePlan(Strict):
    """A client's sanitized gradient sketch: `dim` numbers, from `probe_examples` examples.

    With `dp`, about `probe_examples` examples are sampled for each release; `dim` and `probe_examples` then
    default to 64 and 256, and the mean over releases replaces `ema`.
    """

    kind: SignatureKind = "gradient"
    dim: Annotated[int, Field(ge=2, le=65536)] = 256
    probe_examples: Annotated[int, Field(ge=1, le=65536)] = 32
    ema: Annotated[float, Field(gt=0, le=1)] = 0.5
    clip: Positive = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    model: SharedModelSlug | None = None
    dp: SignatureDpPlan | None = None

    @model_validator(mode="after")
    def _dp_has_a_sample_of_its_own(self) -> Self:
        if self.dp is None:
            return self
        if self.kind != "gradient":
            raise field_error("must be gradient with dp: representations cannot be clipped", "kind")
        for field, value in (("dim", _DIM_WITH_DP), ("probe_examples", _SAMPLE_WITH_DP)):
            if field not in self.model_fields_set:
                object.__setattr__(self, field, value)
        if self.probe_examples < self.dp.minimum_sample:
            raise field_error(
                f"must be at least dp.minimum_sample = {self.dp.minimum_sample}: with fewer records "
                "a sketch is mostly noise",
                "probe_examples",
            )
        return self


class AlignmentPlan(Strict):
    """Alignment of P and Q across architectures; `pivot` is the base model that every agent loads.

    The pivot's pack comes from an operator or a client of the pivot's base model;
    `pivot_pack_by_any_client`: from any client that has waited for it in vain.
    """

    pivot: SharedModelSlug
    anchors: Annotated[int, Field(ge=1, le=100_000)] = 1024
    frames: Literal["pca-tok", "random"] = "pca-tok"
    max_error: Positive = 0.85
    pivot_pack_by_any_client: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PrivacyPlan(Strict):
    """Authentication of clients, and the minimum size of a mixture.

    `allow_bearer_clients` admits clients without a key. `roster_policy`: agents trust the keys pinned in the
    silo (`pinned`), the first key of a name (`tofu`), or the coordinator (`server`).

    `min_voices` is the minimum number of other members in a served mixture; below it a client keeps its own
    adapter. With 1, the mixture for a member with one peer is that peer's adapter.
    """

    allow_bearer_clients: bool = False
    roster_policy: RosterPolicy = "server"
    min_voices: Count = 1


class LimitsPlan(Strict):
    """Limits of an update: `max_norm` over all adapter tensors, `clip_norm` of the learnt change, both L2.

    `max_examples` caps the weight of the number of examples, which clients report themselves.
    """

    max_update_bytes: Annotated[int, Field(ge=1024, le=2**40)] = 64 * 2**20
    max_norm: Positive = 1e4
    clip_norm: Positive | None = None
    max_examples: Count = 100_000


class FederationPlan(Strict):
    """The plan of a federation; everything except `name` and `strategy.name` has a default."""

    name: Name
    strategy: StrategyPlan
    adapter: AdapterPlan = AdapterPlan()
    rounds: RoundsPlan = RoundsPlan()
    training: TrainingPlan = TrainingPlan()
    scores: ScoresPlan = ScoresPlan()
    signature: SignaturePlan = SignaturePlan()
    alignment: AlignmentPlan | None = None
    wire: WirePlan = WirePlan()
    privacy: PrivacyPlan = PrivacyPlan()
    limits: LimitsPlan = LimitsPlan()

    @model_validator(mode="after")
    def _releases_are_counted(self) -> Self:
        dp = self.signature.dp
        if dp is not None and dp.releases is None:
            object.__setattr__(dp, "releases", self.rounds.total)
        return self

    @model_validator(mode="after")
    def _alignment_belongs_to_pq(self) -> Self:
        if self.alignment is not None and self.adapter.kind != "pq":
            raise field_error("must be pq with alignment: ordinary LoRA has no frames", "adapter", "kind")
        return self
