"""The adapter of a plan: the tensors that clients train."""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt
from typing import Annotated, Literal, Self, cast

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from schemas.maths.adapter import block_modules
from schemas.messages.base import Strict, field_error
from schemas.messages.training import Positive

Role = Literal["q", "k", "v", "o", "gate", "up", "down"]
ALL_ROLES: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")

_SHOWN = 8


def _in_one_sentence(value: object, read: ValidatorFunctionWrapHandler) -> int | tuple[int, ...]:
    """Validate layers with one error, where a union has one for each of its members."""
    try:  # inside a wrapper strict validation takes no list of JSON for a tuple
        return cast(int | tuple[int, ...], read(tuple(value) if isinstance(value, list) else value))
    except ValidationError:
        raise PydanticCustomError(
            "wrong", "must be a number from 1 to 1024, or a list of layers from 0 to 1023"
        ) from None


_LayerNumber = Annotated[int, Field(strict=True, ge=0, lt=1024)]
AdaptedLayers = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=1024)]
    | Annotated[tuple[_LayerNumber, ...], Field(min_length=1, max_length=1024)],
    WrapValidator(_in_one_sentence),
]


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
    rslora: bool = False
    """`lora`: whether the factor is `scale` times the square root of `rank`, as in rsLoRA: alpha / sqrt(rank)
    instead of alpha / rank, with alpha = `scale` times `rank`.
    """
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """`lora`: the share of A's inputs that a training step sets to zero, drawn from `training.seed` and the
    round.
    """
    bias: bool = True
    """`pq`: whether `Q` trains. It acts as a bias of the layer's output, which inference servers refuse in
    adapters. False with `lora`.
    """
    blocks: Annotated[int, Field(ge=1, le=64)] = 4
    """`pq`: the number of blocks into which each model's layers are divided; each block has one P and Q per
    role.
    """
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ALL_ROLES
    """The linear layers of a transformer block that get an adapter."""
    layers: AdaptedLayers | None = None
    """The layers that get an adapter: a number K for the last K of each model, or a list of numbers from 0;
    null = all. With `pq`, `blocks` divides these layers. The layers below the first of them never change, so
    that agents compute them once per text.
    """
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
    def _layers_are_distinct_and_enough(self) -> Self:
        if self.layers is None:
            return self
        if not isinstance(self.layers, int):
            if len(set(self.layers)) != len(self.layers):
                raise field_error("must be distinct", "layers")
            # Plans are frozen for everybody but their validators.
            object.__setattr__(self, "layers", tuple(sorted(self.layers)))
        count = self.layers if isinstance(self.layers, int) else len(self.layers)
        if self.kind == "pq" and self.blocks > count:
            raise field_error(f"must be at most {count}, the number of adapter.layers", "blocks")
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
