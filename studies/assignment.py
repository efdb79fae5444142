"""The tasks of each silo of a study: by keywords in their definitions, by category, or by a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from pathlib import Path

from client_agent.errors import StudyUnusable
from client_agent.model.examples import Task
from schemas.maths.seeded_random import permutation
from schemas.user_files import read_text
from studies.study import Study
from studies.study_partitions import CategoryPartition, ClientPartition, KeywordPartition

NO_CATEGORIES = (
    "partition.categories: the rows have no column categories, which task files have and rows of the hub "
    "lack; name the tasks of each category in partition.file, or use by_keyword"
)
_LISTED = 20

_ByName = Mapping[str, Task]
_Categories = dict[str, list[str]]


def assigned_tasks(
    study: Study, seed: int, tasks: _ByName, tested: AbstractSet[str]
) -> dict[str, tuple[str, ...]]:
    """Return the names of every silo's tasks, determined by the seed and the tasks that the data have.

    `tested` are the tasks with test examples.

    Raises:
        StudyUnusable: a category or a task is unknown, a category has too few tasks, a silo has none, or a
            task has no test examples.
    """
    if isinstance(study.partition, ClientPartition):
        assigned = _by_client(study, study.partition.file, tasks)
    else:
        assigned = _dealt(study, seed, categories_of(study, tasks))
    for silo, names in assigned.items():
        # A silo is scored on its own tasks: without test examples of one, its score would be of others.
        untested = [name for name in names if name not in tested]
        if untested:
            raise StudyUnusable(
                f"silo {silo} has the task {untested[0]}, and there are no test examples of it; "
                "add some to the source's test, or assign another task"
            )
    return assigned


def categories_of(study: Study, tasks: _ByName) -> _Categories:
    """Return the tasks of every category of a study's partition, in order of their names.

    Raises:
        StudyUnusable: a category is unknown or empty.
    """
    match study.partition:
        case KeywordPartition(keywords=keywords):
            return _by_keyword(keywords, tasks)
        case CategoryPartition(categories=names, file=None):
            return _by_column(names, tasks)
        case CategoryPartition(categories=names, file=Path() as file):
            return _by_file(names, file, tasks)
        case _:
            return {}


def first_category(definition: str, keywords: Mapping[str, Sequence[str]]) -> str | None:
    """Return the first category with a keyword that begins a word of the definition; None without one."""
    return next(
        (
            category
            for category, listed in keywords.items()
            # At the beginning of a word, so that "translat" finds "translate", and "rate" does not.
            if any(re.search(rf"(?<!\w){re.escape(word)}", definition, re.IGNORECASE) for word in listed)
        ),
        None,
    )


def tasks_by_name(file: Path, owner: str) -> dict[str, list[str]]:
    """Read a JSON object from silos, or categories, to the names of tasks; `owner` is "silo" or "category".

    Raises:
        StudyUnusable: it cannot be read, is something else, or names something twice.
    """
    try:
        # json keeps the last of repeated keys without an error, which would drop the tasks of a silo.
        content = json.loads(read_text(file), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise StudyUnusable(
            f"partition.file: {file} cannot be read ({error.strerror}); check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise StudyUnusable(f"partition.file: {file} is not JSON ({error})") from error
    if not isinstance(content, dict) or not content:
        raise StudyUnusable(f'partition.file: {file} must be an object such as {{"{owner}": ["task1_name"]}}')
    for name, listed in content.items():
        if not isinstance(listed, list) or not all(isinstance(task, str) and task for task in listed):
            raise StudyUnusable(f"partition.file: {file}: {name} must have a list of tasks")
        if not listed:
            raise StudyUnusable(f"partition.file: {file}: {owner} {name} has no tasks; name one at least")
        if len(set(listed)) < len(listed):
            raise StudyUnusable(f"partition.file: {file}: {name} has a task twice")
    return content


def tasks_in(categories: Sequence[str], file: Path) -> dict[str, list[str]]:
    """Read the tasks of some categories from a file that has them by category.

    Raises:
        StudyUnusable: see `tasks_by_name`, or it has no such category.
    """
    by_category = tasks_by_name(file, "category")
    for category in categories:
        if category not in by_category:
            raise StudyUnusable(
                f"partition.categories: there is no category {category} in {file}"
                f"{_similar(category, by_category)}; there are {listed(by_category)}"
            )
    return {category: by_category[category] for category in categories}


def listed(names: Iterable[str]) -> str:
    """Return names as a list for an error message, cut if it is long."""
    every = sorted(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has a key twice")
    return content


def _by_client(study: Study, file: Path, tasks: _ByName) -> dict[str, tuple[str, ...]]:
    by_silo = tasks_by_name(file, "silo")
    names = [silo.name for silo in study.silo]
    for name in names:
        if name not in by_silo:
            raise StudyUnusable(f"partition.file: {file} has no tasks for silo {name}; add a list of them")
    for silo, wanted_tasks in by_silo.items():
        if silo not in names:
            raise StudyUnusable(
                f"partition.file: {file} has tasks for {silo}, and the study's silos are {listed(names)}"
            )
        for task in wanted_tasks:
            if task not in tasks:
                raise StudyUnusable(
                    f"partition.file: {file}: silo {silo} has the task {task}, of which the sources have no "
                    f"training rows{_similar(task, tasks)}; their tasks are {listed(tasks)}"
                )
    return {name: tuple(by_silo[name]) for name in names}


def _similar(name: str, available: Iterable[str]) -> str:
    close = get_close_matches(name, list(available), n=1)
    return f" ({close[0]} is similar)" if close else ""


def _by_keyword(keywords: Mapping[str, Sequence[str]], tasks: _ByName) -> _Categories:
    categories: _Categories = {category: [] for category in keywords}
    for name, task in sorted(tasks.items()):
        category = first_category(task.definition, keywords)
        if category is not None:
            categories[category].append(name)
    for category, names in categories.items():
        if names:
            continue
        alone = {category: keywords[category]}
        earlier = [name for name, task in tasks.items() if first_category(task.definition, alone) is not None]
        because = (
            f"its tasks ({listed(earlier)}) belong to categories before it"
            if earlier
            else f"no definition has a word that begins with {' or '.join(map(repr, keywords[category]))}"
        )
        raise StudyUnusable(
            f"partition.keywords: the category {category} is empty: {because}; change its keywords, or add "
            f"sources. The tasks are {listed(tasks)}"
        )
    return categories


def _by_column(categories: Sequence[str], tasks: _ByName) -> _Categories:
    available: _Categories = {}
    for name, task in sorted(tasks.items()):
        for category in task.categories:
            available.setdefault(category, []).append(name)
    if not available:
        raise StudyUnusable(NO_CATEGORIES)
    for category in categories:
        if category not in available:
            raise StudyUnusable(
                f"partition.categories: there is no category {category} in the rows"
                f"{_similar(category, available)}; there are {listed(available)}"
            )
    return {category: available[category] for category in categories}


def _by_file(categories: Sequence[str], file: Path, tasks: _ByName) -> _Categories:
    chosen: _Categories = {}
    for category, names in tasks_in(categories, file).items():
        chosen[category] = sorted(task for task in names if task in tasks)
        if not chosen[category]:
            raise StudyUnusable(
                f"partition.file: {file}: of the tasks of {category}, {listed(names)}, the sources have no "
                f"training rows; their tasks are {listed(tasks)}"
            )
    return chosen


def _dealt(study: Study, seed: int, categories: _Categories) -> dict[str, tuple[str, ...]]:
    """Deal the tasks of each category to its silos in turn, in an order of the seed."""
    assert isinstance(study.partition, KeywordPartition | CategoryPartition)
    count = study.partition.tasks_per_category
    orders = {
        category: [names[index] for index in permutation(len(names), "study tasks", seed, category)]
        for category, names in categories.items()
    }
    for category, names in categories.items():
        if len(names) < count:
            raise StudyUnusable(
                f"the category {category} has {len(names)} tasks ({listed(names)}), and "
                f"partition.tasks_per_category is {count}; lower it, or add sources"
            )
    places = dict.fromkeys(categories, 0)
    dealt: dict[str, tuple[str, ...]] = {}
    for silo in study.silo:
        names = []
        for category in silo.categories:
            order, place = orders[category], places[category]
            # Round robin, so that each task of a category is dealt once before one is dealt twice.
            names += [order[(place + step) % len(order)] for step in range(count)]
            places[category] += count
        dealt[silo.name] = tuple(dict.fromkeys(names))
    return dealt
