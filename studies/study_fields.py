"""The tables of a study file: silos, sources of rows, methods."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from client_agent.row_template import RowTemplate, require_no_names
from client_agent.settings import Dtype, MetricName, Quantization
from schemas.messages.base import Name, Strict, field_error
from schemas.messages.federations import Count
from schemas.messages.names import NewName
from schemas.messages.recommendations import LORA
from schemas.messages.training import Positive

States = Literal["all", "served", "trained"]
_LORA = {key: value for key, value in LORA["adapter"].items() if key != "kind"}  # type: ignore[union-attr]
MethodName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]
Table = dict[str, JsonValue]


class RowFields(Strict):
    """How rows become examples, as in silo.toml."""

    format: str | None = None
    """A row format or a task template; None = found by the columns."""
    columns: dict[str, str] = Field(default_factory=dict)
    """The column of the data for each name of the format."""
    ignore_columns: list[str] = Field(default_factory=list)
    """Columns of the data, and keys of turns, to ignore."""
    skip_bad_rows: bool = False
    """Whether rows that cannot be read are skipped."""
    metrics: list[MetricName] | None = None
    """The metrics in place of the template's; an empty list scores the loss alone."""
    template: RowTemplate | None = None
    """The study's own template in place of `format`: a prompt, an answer and perhaps the answer's options."""

    @model_validator(mode="after")
    def _reads_rows_in_one_way(self) -> Self:
        if self.template is not None:
            require_no_names(self.format, self.columns)
        return self


class StudySilo(RowFields):
    """One silo: its base model, its sources of rows and its number of training examples.

    Sources are those that the agent reads: files, saved folders, `hub:` ids. A folder may hold train.jsonl,
    validation.jsonl and test.jsonl. Silos with the same `train` get disjoint examples; a silo of a partition
    has no sources.
    """

    name: NewName
    """The silo's name."""
    model: str
    """Its base model, as in silo.toml."""
    dtype: Dtype = "auto"
    """The type of the base model in memory, as in silo.toml."""
    quantization: Quantization = "none"
    """The quantisation of the base model in memory, as in silo.toml."""
    lora_rank: Annotated[int, Field(ge=1)] | None = None
    """The silo's first rank under a strategy with mixed ranks, at most the plan's; None = the plan's. Under
    other strategies, and alone, a silo has the plan's rank."""
    train: str | None = None
    """The source of its training examples; needed unless the study has a partition."""
    validation: str | None = None
    """The source of its validation examples; None = examples of `train`."""
    test: str | None = None
    """The source of its test examples; None = examples of `train`."""
    examples: Count
    """The number of its training examples."""
    joins_after: Annotated[int, Field(ge=0)] = 0
    """The round after which the silo joins; 0 = it is a founder."""
    group: Name | None = None
    """A label for the report, such as the silo's task."""
    categories: list[Name] = Field(default_factory=list)
    """The categories of a partition by category from which the silo has tasks; without them silos have the
    partition's in turn, one each."""
    answers: dict[str, str] = Field(default_factory=dict)
    """The silo's own words for the answers of its rows: silos of one source with different answers have tasks
    that contradict each other."""

    @model_validator(mode="after")
    def _is_read_from_somewhere(self) -> Self:
        if self.train is None and (self.validation is not None or self.test is not None):
            raise field_error("validation and test need train", "train")
        return self


class Stream(Strict):
    """How much of a source is read: it is read row by row, and only what the silos' tasks need is stored.

    Reading ends when every task has `rows_per_task` rows, and after `most_rows` at the latest.
    """

    rows_per_task: Count = 100
    most_rows: Annotated[int, Field(ge=1)] = 1_000_000


class StudySource(RowFields):
    """One task, or rows of several, which a partition divides among the silos.

    With `stream` it is not read whole; that needs a partition that assigns tasks.
    """

    name: Name
    train: str
    validation: str | None = None
    test: str | None = None
    stream: Stream | None = None

    @model_validator(mode="after")
    def _has_tasks_to_stream(self) -> Self:
        if self.stream is not None and self.format != "natural_instructions":
            raise field_error('needs format = "natural_instructions", whose rows have tasks', "stream")
        return self


class StudyMethod(Strict):
    """The changes of a method to the one it is `like`; `plan` overrides that method's plan.

    An `alone` method trains every silo without a federation. `control` is the alone method that a federated
    one is compared with; by default the built-in one with its adapter. `states` are those of a client that
    may be its result, with the one that it begins with: all, as an agent keeps them, those that it is
    served, or those after its own steps. A method that changes nothing else shares the runs of the one it
    is like.
    """

    like: MethodName | None = None
    alone: bool | None = None
    control: MethodName | None = None
    states: States | None = None
    plan: Table = Field(default_factory=dict)


class FairRules(Strict):
    """How methods are compared fairly: one adapter for all, and a rate that is searched for each.

    `adapter` has the fields of every method's LoRA; its roles and layers are those of P and Q too. Each of
    `rates` is tried with every method, or by default those of an agent's search: .001 and .003, and on in the
    better direction, up to five. `search_seed` is the seed of these runs, which is never reported: by default
    the one before the study's least seed, or after its largest where that is 0. `control` is the method that
    all others are compared with.
    """

    adapter: Table = Field(default_factory=lambda: dict(_LORA))
    rates: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    search_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    control: MethodName = "local_lora"

    @field_validator("adapter", mode="after")
    @classmethod
    def _is_a_lora(cls, adapter: Table) -> Table:
        if "kind" in adapter:
            raise field_error("must not have a kind: it is the LoRA of every method", "adapter")
        return adapter

    @field_validator("rates", mode="after")
    @classmethod
    def _are_distinct(cls, rates: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if rates is not None and len(set(rates)) != len(rates):
            raise field_error("must be distinct", "rates")
        return rates
