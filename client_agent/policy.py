"""Check a federation's plan and updates against the `[policy]` table of silo.toml."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, StringConstraints

from client_agent.errors import AgentError
from schemas.messages.base import Digest, Strict
from schemas.wire.digests import digest_of

if TYPE_CHECKING:
    from schemas.maths.adapter import Layout
    from schemas.messages.adapter_plan import AdapterPlan
    from schemas.messages.federations import FederationPlan
    from schemas.messages.recipes import Recipe
    from schemas.messages.sum_plan import SecureSumPlan

_MODULE = r"^(b[0-9]{1,4}\.)?(q|k|v|o|gate|up|down)$"
_BYTES_OF_SUM = {8: 2, 16: 3}
"""The bytes of a value in a masked input of at most 256 members, by `privacy.secure_sum.bits`."""

SentKind = Literal["sketches", "scores", "progress", "alignment", "counts", "outputs"]
"""The kinds of data that an agent sends beside updates.

`sketches`: gradient sketches; `scores`: losses and other scores; `progress`: steps of training; `alignment`:
alignment packs with responses to anchors, and their tests; `counts`: the experts of a bank that the client
uses; `outputs`: outputs of its model on public texts.
"""
_WITHOUT: Final[dict[str, str]] = {
    "sketches": "a plan with privacy.secure_sum, which uses no sketches",
    "scores": "a plan with privacy.secure_sum, pairwise masking and summed scores",
    "alignment": "a plan without alignment",
    "counts": "a strategy without a bank of experts",
    "outputs": "a plan without strategy.options.distil",
}

Module = Annotated[str, StringConstraints(pattern=_MODULE)]


class PolicyRefused(AgentError):
    """The federation's plan or an update breaks the silo's policy. Nothing more is sent."""

    def __init__(
        self, rule: str, allowed: str, fact: str, remedy: str, *, effect: str = "nothing is trained or sent"
    ) -> None:
        super().__init__(
            f"{fact}, and this silo's policy.{rule} is {allowed}; {effect}. "
            f"Ask the operator for {remedy}, or change policy.{rule} in silo.toml"
        )


class Policy(Strict):
    """The rules of a silo. A rule that is not set allows everything."""

    strategies: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The strategies that may be used."""
    modules: Annotated[tuple[Module, ...], Field(min_length=1)] | None = None
    """The linear layers whose changes may leave the silo: roles such as `v`, or modules such as `b0.v`."""
    max_update_bytes: Annotated[int, Field(ge=1)] | None = None
    """The largest size in bytes of an update, or of the silo's input of a sum."""
    sends: tuple[SentKind, ...] | None = None
    """The kinds of data that may leave the silo beside updates and enrolment; `[]` = none."""
    max_training_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The largest `privacy.training.epsilon` of a plan; a plan without private training is refused."""
    max_training_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The largest `privacy.training.delta` at which `max_training_epsilon` may hold; without it, unused."""
    plan: Digest | None = None
    """The digest of the only allowed plan; `tessera agent check` prints it."""

    def require_plan(self, plan: FederationPlan, document: bytes | None) -> None:
        """Check a plan by every rule that needs no layout.

        Args:
            document: the plan as served, whose digest is checked; None = not served yet.

        Raises:
            PolicyRefused: a rule does not allow the plan.
        """
        name = plan.strategy.name
        if self.strategies is not None and name not in self.strategies:
            fact, remedy = (
                f"the plan's strategy is {name}",
                f"a federation with {' or '.join(self.strategies)}",
            )
            raise PolicyRefused("strategies", _listed(self.strategies), fact, remedy)
        outside = [module for module in sent_modules(plan.adapter) if not self._allows(module)]
        if self.modules is not None and outside:
            fact = f"the plan's adapter sends {_listed(outside)}"
            remedy = "a plan with other adapter.roles or adapter.target_modules"
            raise PolicyRefused("modules", _listed(self.modules), fact, remedy)
        self._require_private(plan)
        if self.plan is not None and document is not None and digest_of(document) != self.plan:
            fact = f"the plan's digest is {digest_of(document)}"
            raise PolicyRefused("plan", self.plan, fact, "the plan that was examined")

    def _require_private(self, plan: FederationPlan) -> None:
        max_epsilon, training = self.max_training_epsilon, plan.privacy.training
        if max_epsilon is None:
            return
        if training is not None and training.epsilon <= max_epsilon:
            self._require_delta(training.delta)
            return
        fact = "the plan trains without differential privacy"
        if training is not None:
            fact = f"the plan allows training to cost epsilon {training.epsilon:g}"
        remedy = f"a plan with a privacy.training.epsilon of {max_epsilon:g} or less"
        raise PolicyRefused("max_training_epsilon", f"{max_epsilon:g}", fact, remedy)

    def _require_delta(self, delta: float) -> None:
        max_delta = self.max_training_delta
        if delta > max_delta:
            fact = f"the plan promises the epsilon of training at delta {delta:g} only"
            remedy = f"a plan with a privacy.training.delta of {max_delta:g} or less"
            raise PolicyRefused("max_training_delta", f"{max_delta:g}", fact, remedy)

    def require_kinds(self, kinds: Iterable[SentKind]) -> None:
        """Check what the agents of a plan send beside updates.

        Raises:
            PolicyRefused: `sends` lacks a kind.
        """
        for kind in kinds:
            if not self.may_send(kind):
                fact = f"under the plan, agents send {kind}"
                raise PolicyRefused("sends", _listed(self.sends or ()) or "empty", fact, _WITHOUT[kind])

    def may_send(self, kind: SentKind) -> bool:
        return self.sends is None or kind in self.sends

    def require_update(
        self,
        layout: Layout,
        recipe: Recipe,
        max_bytes: int | None,
        summed: SecureSumPlan | None,
        *,
        extra_bytes: int = 0,
    ) -> None:
        """Check before training that updates of a layout are small enough, uncompressed.

        An update that the recipe cannot encode is sent dense; `require_body` checks its size then.

        Args:
            layout: the tensors of an update, as name and shape.
            summed: the plan of the secure sum, whose inputs are not encoded by the recipe; None = no sum.
            extra_bytes: the bytes that go with the adapter: header, manifest, sketch, outputs.

        Raises:
            PolicyRefused: an update may be larger than `max_update_bytes`.
        """
        if self.max_update_bytes is None:
            return
        from schemas.wire.budget import most_bytes  # imports NumPy, which settings do without

        if summed is not None:
            size = sum(prod(shape) for shape in layout.values()) * _BYTES_OF_SUM[summed.bits]
        else:
            # The agent adapts to `wire.max_bytes`, so it is a bound even where the recipe allows more.
            size = min(most_bytes(layout, recipe), max_bytes or 2**63)
        self._require_bytes(size + extra_bytes, "an update under this plan has up to")

    def require_body(self, body: bytes) -> None:
        """Check the exact bytes of an update immediately before they are sent.

        Raises:
            PolicyRefused: the body has more than `max_update_bytes`.
        """
        if self.max_update_bytes is not None:
            self._require_bytes(len(body), "the encoded update has", effect="it is not sent")

    def sentences(self) -> str:
        """Return the rules in force as text."""
        max_epsilon = self.max_training_epsilon
        rules = {
            "strategies": _listed(self.strategies) if self.strategies else None,
            "modules": _listed(self.modules) if self.modules else None,
            "at most": f"{self.max_update_bytes} bytes per update" if self.max_update_bytes else None,
            "sends": (_listed(self.sends) or "nothing") if self.sends is not None else None,
            "training epsilon at most": (
                f"{max_epsilon:g} at delta {self.max_training_delta:g}" if max_epsilon is not None else None
            ),
            "plan": self.plan,
        }
        texts = [f"{rule} {text}" for rule, text in rules.items() if text is not None]
        return "; ".join(texts) or "no [policy] in silo.toml: the plan decides"

    def _allows(self, module: str) -> bool:
        allowed = self.modules or ()
        # A rule by role allows the role in every block.
        return module in allowed or module.rpartition(".")[2] in allowed

    def _require_bytes(self, size: int, fact: str, **effect: str) -> None:
        limit = self.max_update_bytes
        if limit is not None and size > limit:
            remedy = f"a plan with a wire.max_bytes below {limit}, fewer adapter.roles or a lower rank"
            raise PolicyRefused("max_update_bytes", str(limit), f"{fact} {size} bytes", remedy, **effect)


def sent_modules(adapter: AdapterPlan) -> tuple[str, ...]:
    """Return the modules that a plan's adapter sends: roles with A and B, (block, role)s with P and Q."""
    modules = adapter.modules() if adapter.kind == "pq" else ()
    return (*(adapter.roles if adapter.travelling_lora_rank else ()), *modules)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
