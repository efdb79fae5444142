"""The study file: silos, data and methods of a comparison."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, PrivateAttr, ValidationError, model_validator

from client_agent.errors import StudyUnusable
from schemas.messages.base import Name, Strict, field_error
from schemas.messages.federations import Count

MethodName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Table = dict[str, JsonValue]
_RESERVED = frozenset({"like", "alone"})


class StudySilo(Strict):
    """One silo: its base model, its data files and its number of examples.

    Silos with the same `train` file get disjoint examples. `joins_after` is the round after which the silo
    joins, 0 for a founder; `group` is a label for the report, such as the silo's task.
    """

    name: Name
    model: str
    train: Path
    test: Path | None = None
    examples: Count
    joins_after: Annotated[int, Field(ge=0)] = 0
    group: Name | None = None


class StudyMethod(Strict):
    """The changes of a method to the one it is `like`; `plan` overrides that method's plan.

    An `alone` method trains every silo without a federation.
    """

    like: MethodName | None = None
    alone: bool | None = None
    plan: Table = Field(default_factory=dict)


class Study(Strict):
    """A comparison of methods over the same silos; `plan` has the common fields of their federation plans."""

    silo: Annotated[list[StudySilo], Field(min_length=2)]
    pivot_model: str | None = None
    anchors: Path | None = None
    tests: Count = 128
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default_factory=lambda: [0, 1, 2])
    methods: Annotated[list[MethodName], Field(min_length=1)] | None = None
    plan: Table = Field(default_factory=dict)
    method: dict[MethodName, StudyMethod] = Field(default_factory=dict)
    _name: str = PrivateAttr("study")

    @classmethod
    def from_toml(cls, file: Path | str) -> Study:
        """Read a study's TOML file; the file's name without suffix is the study's. See `read_study`."""
        path = Path(file)
        study = read_study(path)
        study._name = path.stem
        return study

    @property
    def name(self) -> str:
        """The study's name in reports and the default of its output folder."""
        return self._name

    @model_validator(mode="after")
    def _is_one_federation(self) -> Self:
        twice = [name for name, count in Counter(silo.name for silo in self.silo).items() if count > 1]
        if twice:
            raise field_error(f"two silos are called {twice[0]}", "silo")
        if len(self.founders) < 2:
            raise field_error("at least two silos must be founders (joins_after = 0)", "silo")
        if len(set(self.seeds)) != len(self.seeds):
            raise field_error("a seed is named twice", "seeds")
        if self.methods is not None and len(set(self.methods)) != len(self.methods):
            raise field_error("a method is named twice", "methods")
        if self.pivot_model is None and len({silo.model for silo in self.silo}) > 1:
            raise field_error(
                "silos of several base models need a model that all of them load", "pivot_model"
            )
        if self.pivot_model is not None and self.anchors is None:
            raise field_error("a pivot needs public anchor texts", "anchors")
        return self

    @property
    def founders(self) -> list[StudySilo]:
        return [silo for silo in self.silo if silo.joins_after == 0]

    @property
    def latecomers(self) -> list[StudySilo]:
        return [silo for silo in self.silo if silo.joins_after > 0]

    @property
    def models(self) -> list[str]:
        """The base models in use, the pivot first."""
        pivot = [self.pivot_model] if self.pivot_model is not None else []
        return list(dict.fromkeys([*pivot, *(silo.model for silo in self.silo)]))

    def with_examples(self, count: int) -> Study:
        silos = [silo.model_copy(update={"examples": count}) for silo in self.silo]
        study = self.model_copy(update={"silo": silos})
        study._name = f"{self.name}-{count}"
        return study


def read_study(file: Path) -> Study:
    """Read a study; relative paths in it are relative to the file.

    Raises:
        StudyUnusable: the file is unreadable, or a field is missing, unknown or invalid.
    """
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise StudyUnusable(f"{file} cannot be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyUnusable(f"{file} is not TOML: {error}") from error
    methods = content.get("method")
    if isinstance(methods, dict):
        content["method"] = {name: _method(table) for name, table in methods.items()}
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        raise StudyUnusable(f"{file} is not a study: {faults(error)}") from error
    return _placed(study, file.absolute().parent)


def faults(error: ValidationError) -> str:
    """Return the invalid fields and their errors as text."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())


def _method(table: object) -> object:
    """Split a method's table into the method's own fields and its plan."""
    if not isinstance(table, dict):
        return table
    fields: dict[str, Any] = {key: value for key, value in table.items() if key in _RESERVED}
    return fields | {"plan": {key: value for key, value in table.items() if key not in _RESERVED}}


def _placed(study: Study, folder: Path) -> Study:
    silos = [
        silo.model_copy(
            update={
                "model": _model(silo.model, folder),
                "train": folder / silo.train.expanduser(),
                "test": folder / silo.test.expanduser() if silo.test is not None else None,
            }
        )
        for silo in study.silo
    ]
    return study.model_copy(
        update={
            "silo": silos,
            "pivot_model": _model(study.pivot_model, folder) if study.pivot_model is not None else None,
            "anchors": folder / study.anchors.expanduser() if study.anchors is not None else None,
        }
    )


def _model(value: str, folder: Path) -> str:
    """Return the resolved path of a model's folder or .gguf file if it exists, else the hub id unchanged."""
    place = (folder / Path(value).expanduser()).resolve()
    return str(place) if place.exists() else value
