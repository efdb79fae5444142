"""What a federation is: its plan with every default, and how it is shown. Knows no database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from schemas.maths.adapter import block_modules
from schemas.messages.base import Name, SharedModelSlug, Strict, UtcTime, wrong
from schemas.messages.recipes import WirePlan

Role = Literal["q", "k", "v", "o", "gate", "up", "down"]
ALL_ROLES: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")

SignatureKind = Literal["gradient", "representation"]
RosterPolicy = Literal["pinned", "tofu", "server"]
FederationState = Literal["open", "running", "paused", "finished"]
_SHOWN = 8
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class StrategyPlan(Strict):
    """Which strategy, and its options; the strategy's own file says which options there are."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=50)]
    options: dict[str, JsonValue] = Field(default_factory=dict)


class AdapterPlan(Strict):
    """The trainable tensors of a client.

    `pq`: `P` (rank, rank) and `Q` (rank,) per (block, role) between frozen frames; `lora`: ordinary
    `A` (rank, d_in), `B` (d_out, rank) per (layer, role). `scale` multiplies the adapter's output.

    `P`, `Q` are those of `target_modules`, such as `b0.v`, null = of every (block, role). Beside them an
    ordinary LoRA of every (layer, role) may train: clients of the identical base model share
    `same_architecture_rank` ranks of it, and `private_rank` ranks never leave the client; 0 = none.
    """

    kind: Literal["pq", "lora"] = "pq"
    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    scale: Positive = 2.0
    blocks: Annotated[int, Field(ge=1, le=64)] = 4
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ALL_ROLES
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    private_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    same_architecture_rank: Annotated[int, Field(ge=0, le=1024)] = 0

    @model_validator(mode="after")
    def _roles_are_distinct(self) -> Self:
        if len(set(self.roles)) != len(self.roles):
            raise wrong("must be distinct", "roles")
        return self

    @model_validator(mode="after")
    def _further_ranks_belong_to_pq(self) -> Self:
        for field in ("same_architecture_rank", "private_rank"):
            if self.kind == "lora" and getattr(self, field):
                raise wrong("must be 0 with kind lora: it is for the LoRA beside P and Q; use rank", field)
        return self

    @model_validator(mode="after")
    def _target_modules_are_the_plans(self) -> Self:
        wanted, known = self.target_modules, block_modules(self.blocks, self.roles)
        if wanted is None:
            return self
        if self.kind == "lora":
            raise wrong("must be null with kind lora: it is for P and Q; use roles", "target_modules")
        unknown = [module for module in wanted if module not in known]
        if unknown:
            raise wrong(
                f"{unknown[0]} is not among the (block, role)s of blocks and roles: "
                f"{', '.join(known[:_SHOWN])}{', ...' if len(known) > _SHOWN else ''}",
                "target_modules",
            )
        if len(set(wanted)) != len(wanted):
            raise wrong("must be distinct", "target_modules")
        return self

    def modules(self, roles: Collection[str]) -> tuple[str, ...]:
        """List the (block, role)s that have P and Q in a model with these roles, blocks first."""
        everything = block_modules(self.blocks, [role for role in self.roles if role in roles])
        wanted = everything if self.target_modules is None else self.target_modules
        return tuple(name for name in everything if name in wanted)

    @property
    def travelling_lora_rank(self) -> int:
        """The rank of the `A`, `B` that travel; 0 = there are none."""
        return self.rank if self.kind == "lora" else self.same_architecture_rank


class RoundsPlan(Strict):
    """How many rounds, who must be there, how long they wait, how absent clients fade."""

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
            raise wrong("must not be larger than min_clients", "quorum")
        return self

    @property
    def needed_updates(self) -> int:
        """The resolved quorum."""
        return self.quorum if self.quorum is not None else self.min_clients


class TrainingPlan(Strict):
    """What every client does locally in one round."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 8
    learning_rate: Positive = 0.01
    max_length: Annotated[int, Field(ge=2, le=1_048_576)] = 512
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    accumulation: Annotated[int, Field(ge=1, le=65536)] = 1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive | None = 1.0
    gradient_checkpointing: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class SignatureDpPlan(Strict):
    """(epsilon, delta)-differential privacy of every record of a client against whoever sees its signatures.

    The budget `epsilon` is divided over `releases`, one a round, null = as many as there are rounds; once it
    is spent, the last signature is sent again. `minimum_sample` is the fewest records that a release may
    expect to draw: of fewer, little but noise would be left.
    """

    epsilon: Annotated[float, Field(ge=0.01, le=10)]
    delta: Annotated[float, Field(ge=1e-8, le=1e-2)] = 1e-5
    releases: Annotated[int, Field(ge=1, le=100_000)] | None = None
    minimum_sample: Count = 64


_DIM_WITH_DP = 64
_SAMPLE_WITH_DP = 256


class SignaturePlan(Strict):
    """How a client's sanitized gradient sketch is made (`dim` numbers, from `probe_examples` examples).

    With `dp` that many examples are drawn anew for each release, in expectation; `dim` and `probe_examples`
    are then 64 and 256 unless the plan says otherwise, and the mean over releases takes the place of `ema`.
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
            raise wrong(
                "must be gradient with dp: no record's share of a representation can be clipped", "kind"
            )
        for field, value in (("dim", _DIM_WITH_DP), ("probe_examples", _SAMPLE_WITH_DP)):
            if field not in self.model_fields_set:
                object.__setattr__(self, field, value)
        if self.probe_examples < self.dp.minimum_sample:
            raise wrong(
                f"must be dp.minimum_sample = {self.dp.minimum_sample} at least: of fewer records little but "
                "noise would be left",
                "probe_examples",
            )
        return self


class AlignmentPlan(Strict):
    """How P and Q are made comparable across architectures; `pivot` names the base model all agents load."""

    pivot: SharedModelSlug
    anchors: Annotated[int, Field(ge=1, le=100_000)] = 1024
    frames: Literal["pca-tok", "random"] = "pca-tok"
    max_error: Positive = 0.85
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PrivacyPlan(Strict):
    """Who may take part how: clients sign their requests, and bearer clients only where they are allowed.

    `roster_policy` is whom agents let the coordinator count among the members: those whose keys people
    pinned in the silo (pinned), whom it named first under a name (tofu), or whom it says (server).

    `min_voices` is how many other members a mixture must be made of to be served; below it a client keeps
    its own adapter. With 1, a member whose only peer is one other is served that one's adapter as it is.
    """

    allow_bearer_clients: bool = False
    roster_policy: RosterPolicy = "server"
    min_voices: Count = 1


class LimitsPlan(Strict):
    """What an update may cost and contain; L2 over all adapter tensors, `clip_norm` of what was learnt.

    `max_examples` is the most that the number of examples, which is the client's word, counts for.
    """

    max_update_bytes: Annotated[int, Field(ge=1024, le=2**40)] = 64 * 2**20
    max_norm: Positive = 1e4
    clip_norm: Positive | None = None
    max_examples: Count = 100_000


class FederationPlan(Strict):
    """One joint training effort; everything but `name` and `strategy.name` has a default."""

    name: Name
    strategy: StrategyPlan
    adapter: AdapterPlan = AdapterPlan()
    rounds: RoundsPlan = RoundsPlan()
    training: TrainingPlan = TrainingPlan()
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
            raise wrong("alignment needs pq: ordinary LoRA has no frames to align", "adapter", "kind")
        return self


class RoundNumber(Strict):
    """The current round, in short."""

    number: int
    state: str


class ClientCounts(Strict):
    """How many clients a federation has."""

    enrolled: int
    revoked: int


Standing = Literal["passed", "failed", "untested"]


class PackStanding(Strict):
    """How a base model's alignment pack stands, and in words what follows for whom its clients share with."""

    base_model: str
    verdict: Standing
    sharing: str


class Federation(Strict):
    """A federation as people see it; `plan` is the resolved one, `alignment` has a line per pack."""

    id: str
    name: str
    state: FederationState
    plan: FederationPlan
    round: RoundNumber | None
    clients: ClientCounts
    claims: list[str]
    alignment: list[PackStanding]
    created_at: UtcTime


class FederationPage(Strict):
    """Some federations, and where the next page starts."""

    items: list[Federation]
    next: str | None
