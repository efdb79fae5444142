"""The partitions of a study file, and whether its silos and sources fit them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.messages.base import Name, Strict, field_error
from schemas.messages.federations import Count, Positive
from studies.study_fields import StudySilo, StudySource

Keyword = Annotated[str, Field(pattern=r"^\S(.*\S)?$", max_length=200)]


class DirichletPartition(Strict):
    """Every silo has its own proportions of the classes, drawn from a symmetric Dirichlet distribution.

    A small `alpha` gives each silo few classes. Classes are the sources, or with `over = "label"` the
    completions of each source that has at most 20 different ones.
    """

    kind: Literal["dirichlet"]
    alpha: Positive
    over: Literal["label", "task"] = "label"


class TaskPartition(Strict):
    """Silo i has the sources i, i+1, ... (`tasks_per_silo` of them), beginning again after the last one."""

    kind: Literal["by_task"]
    tasks_per_silo: Count = 1


class SizePartition(Strict):
    """All silos draw from the union of the sources, and differ in their number of training examples.

    `sizes` names it for every silo. `power` divides the sum of the silos' `examples`: the share of the k-th
    silo is proportional to k ** -power.
    """

    kind: Literal["by_size"]
    sizes: list[Count] | None = None
    power: Positive | None = None

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        if (self.sizes is None) == (self.power is None):
            raise field_error("set either sizes or power", "sizes")
        return self


class KeywordPartition(Strict):
    """Silos have tasks of categories: those whose definitions hold a keyword of the category.

    A keyword is found where a word begins with it, in upper or lower case. A task of several categories
    belongs to the first one. Each silo has `tasks_per_category` tasks of each of its categories; silos of one
    category have them in turn, beginning again after the last.
    """

    kind: Literal["by_keyword"]
    keywords: Annotated[dict[Name, Annotated[list[Keyword], Field(min_length=1)]], Field(min_length=1)]
    tasks_per_category: Count = 1

    @property
    def categories(self) -> list[str]:
        return list(self.keywords)


class CategoryPartition(Strict):
    """As `by_keyword`, with the categories that the data sort their tasks into.

    They are those of the rows' column `categories`, or of `file`: a JSON object from category to tasks,
    relative to the study.
    """

    kind: Literal["by_category"]
    categories: Annotated[list[Name], Field(min_length=1)]
    file: Path | None = None
    tasks_per_category: Count = 1


class ClientPartition(Strict):
    """Every silo has the tasks that `file` names: a JSON object from silo to tasks, relative to the study."""

    kind: Literal["by_client"]
    file: Path


PartitionOfTasks = KeywordPartition | CategoryPartition | ClientPartition
"""The partitions that assign the tasks of rows, such as those of Natural Instructions."""

Partition = Annotated[
    DirichletPartition | TaskPartition | SizePartition | PartitionOfTasks, Field(discriminator="kind")
]


def require_fit(
    partition: Partition | None, silos: Sequence[StudySilo], sources: Sequence[StudySource]
) -> None:
    """Raise unless the silos and sources of a study are what its partition divides.

    Raises:
        ValidationError: a number, a category or a stream does not fit.
    """
    if isinstance(partition, SizePartition):
        sizes = partition.sizes
        if sizes is not None and len(sizes) != len(silos):
            raise field_error(f"{len(sizes)} sizes for {len(silos)} silos", "partition.sizes")
    elif isinstance(partition, TaskPartition) and partition.tasks_per_silo > len(sources):
        raise field_error(f"more than the {len(sources)} sources", "partition.tasks_per_silo")
    # Other partitions need to know all rows before they divide them.
    streamed = next((source.name for source in sources if source.stream is not None), None)
    if streamed is not None and not isinstance(partition, PartitionOfTasks):
        fact = f"source {streamed} has a stream, which needs a partition by_keyword, by_category or by_client"
        raise field_error(fact, "source")
    available = partition.categories if isinstance(partition, KeywordPartition | CategoryPartition) else []
    if len(set(available)) < len(available):
        raise field_error("a category is named twice", "partition.categories")
    for silo in silos:
        unknown = [category for category in silo.categories if category not in available]
        if unknown and not available:
            fact = f"silo {silo.name} has categories, which need a partition by_keyword or by_category"
            raise field_error(fact, "silo")
        if unknown:
            listed = ", ".join(available)
            fact = f"silo {silo.name} has the category {unknown[0]}, and those of the partition are {listed}"
            raise field_error(fact, "silo")
        if len(set(silo.categories)) < len(silo.categories):
            raise field_error(f"silo {silo.name} has a category twice", "silo")


def with_categories(silos: Sequence[StudySilo], partition: Partition | None) -> list[StudySilo]:
    """Return the silos with their categories: those without have the partition's in turn, one each.

    A silo's group in the report is its categories, unless it names one.
    """
    if not isinstance(partition, KeywordPartition | CategoryPartition):
        return list(silos)
    # Categories in turn and not by chance, so that a study reads the same for every seed.
    turns = cycle(partition.categories)
    placed = []
    for silo in silos:
        categories = silo.categories or [next(turns)]
        # The longest group that a field accepts.
        group = silo.group or ", ".join(categories)[:100]
        placed.append(silo.model_copy(update={"categories": categories, "group": group}))
    return placed
