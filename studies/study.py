"""The study file: silos, data and methods of a comparison."""

from __future__ import annotations

import tomllib
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from client_agent.data.sources import HUB
from client_agent.errors import StudyUnusable
from schemas.messages.base import Strict, field_error
from schemas.messages.faults import complaints
from schemas.messages.federations import Count
from schemas.names.spelling import is_resembling
from schemas.trackers.options import TrackerName, TrackerOptions, require_addresses
from schemas.user_files import read_text
from studies.study_fields import (
    FairRules,
    MethodName,
    StudyMethod,
    StudySilo,
    StudySource,
    Table,
)
from studies.study_partitions import (
    CategoryPartition,
    ClientPartition,
    Partition,
    SizePartition,
    require_fit,
    with_categories,
)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
_SOURCES = ("train", "validation", "test")
_METHOD_FIELDS = frozenset({"like", "alone", "control", "states"})


class Study(Strict):
    """A comparison of methods over the same silos; `plan` has the common fields of their federation plans.

    Every silo has `tests` test and `validation` validation examples, beside its training examples. Without a
    `partition` each silo names its sources; with one, the examples of all `source`s are divided by it.
    """

    silo: Annotated[list[StudySilo], Field(min_length=2)]
    """The silos; at least two take part from the first round."""
    source: list[StudySource] = Field(default_factory=list)
    """The sources of rows that `partition` divides."""
    partition: Partition | None = None
    """How rows are divided among silos; None = each silo names its own sources."""
    pivot_model: str | None = None
    """The model that all silos load; needed with several base models."""
    anchors: Path | None = None
    """The file of public anchor texts, for alignment and for measuring forgetting."""
    forgetting: Annotated[int, Field(ge=0)] = 64
    """The largest number of anchor texts that forgetting is measured on; 0 = it is not measured."""
    tests: Count = 128
    """The largest number of test examples per silo and seed."""
    validation: Annotated[int, Field(ge=0)] = 16
    """The number of validation examples per silo."""
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default_factory=lambda: [0, 1, 2])
    """The seeds of data, adapters and order; methods are compared seed by seed."""
    report_to: tuple[TrackerName, ...] = ()
    """The trackers that record every run, one run per method and seed; each needs the extra of its name."""
    mlflow_uri: str | None = None
    """An MLflow server or database; None = a SQLite file in `trackers` of the output folder."""
    wandb_url: str | None = None
    """A W&B server; None = files in `trackers` of the output folder."""
    methods: Annotated[list[MethodName], Field(min_length=1)] | None = None
    """The methods that run by default; None = the built-in ones and those of `method`."""
    plan: Table = Field(default_factory=dict)
    """The common fields of all methods' federation plans."""
    method: dict[MethodName, StudyMethod] = Field(default_factory=dict)
    """Further methods, by name."""
    fair: FairRules | None = None
    """How the methods are compared fairly; None = each with its own adapter and choice of the rate."""
    _name: str = PrivateAttr("study")

    @classmethod
    def from_toml(
        cls,
        file: Path | str,
        *,
        data: Path | str | None = None,
        models: Path | str | None = None,
        copies: int | None = None,
    ) -> Study:
        """Read a study's TOML file; the file's name without suffix is the study's.

        Args:
            data, models: the folders of its sources and models; None = those that the file names.
            copies: the number of silos that each silo with `copies` stands for; None = the file's.

        Raises:
            StudyUnusable: see `read_study`.
        """
        return read_study(
            Path(file),
            data=Path(data) if data is not None else None,
            models=Path(models) if models is not None else None,
            copies=copies,
        )

    @property
    def name(self) -> str:
        """The name in reports and of the default output folder: that of its file, or set by `named`."""
        return self._name

    def named(self, name: str) -> Study:
        """Return the study with another name."""
        study = self.model_copy()
        study._name = name
        return study

    @model_validator(mode="after")
    def _is_one_federation(self) -> Self:
        # The coordinator refuses such names as well, but only after the models are loaded.
        for first, second in combinations([silo.name for silo in self.silo], 2):
            if is_resembling(first, second):
                raise field_error(
                    f"two silos are called {first} and {second}, which look alike; rename one", "silo"
                )
        if len(self.founders) < 2:
            raise field_error("at least two silos must be founders (joins_after = 0)", "silo")
        if len(set(self.seeds)) != len(self.seeds):
            raise field_error("a seed is listed twice; remove one", "seeds")
        if self.methods is not None and len(set(self.methods)) != len(self.methods):
            raise field_error("a method is listed twice; remove one", "methods")
        if self.pivot_model is None and len({silo.model for silo in self.silo}) > 1:
            raise field_error(
                "missing: silos of several base models need a model that all of them load", "pivot_model"
            )
        if self.pivot_model is not None and self.anchors is None:
            raise field_error("missing: a pivot needs public anchor texts", "anchors")
        return self

    @model_validator(mode="after")
    def _has_trackers_of_its_addresses(self) -> Self:
        require_addresses(self.report_to, self.mlflow_uri, self.wandb_url)
        return self

    def trackers(self, out: Path) -> TrackerOptions:
        """Return the options of its trackers, whose files are in an output folder."""
        return TrackerOptions(self.report_to, out / "trackers", self.mlflow_uri, self.wandb_url)

    @model_validator(mode="after")
    def _has_data(self) -> Self:
        twice = _repeated([source.name for source in self.source])
        if twice is not None:
            raise field_error(f"two sources are called {twice}; rename one", "source")
        if self.partition is None:
            require_fit(None, self.silo, self.source)
            without = [silo.name for silo in self.silo if silo.train is None]
            if without:
                raise field_error(f"silo {without[0]} needs train, or the study a partition", "silo")
            if self.source:
                raise field_error("sources need a partition that divides them among the silos", "partition")
            return self
        with_train = [silo.name for silo in self.silo if silo.train is not None]
        if with_train:
            fact = f"silo {with_train[0]} gets its data from the partition; leave its train out"
            raise field_error(fact, "silo")
        if not self.source:
            raise field_error("a partition needs at least one source", "source")
        require_fit(self.partition, self.silo, self.source)
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
        """Return the study with another number of training examples per silo.

        Raises:
            StudyUnusable: its partition names the sizes.
        """
        if isinstance(self.partition, SizePartition) and self.partition.sizes is not None:
            raise StudyUnusable("the study's partition.sizes determines the examples; leave --examples out")
        silos = [silo.model_copy(update={"examples": count}) for silo in self.silo]
        return self.model_copy(update={"silo": silos}).named(f"{self.name}-{count}")

    def with_tests(self, most: int) -> Study:
        """Return the study with another largest number of test examples per silo."""
        return self.model_copy(update={"tests": most}).named(f"{self.name}-tests{most}")


def read_study(
    file: Path, *, data: Path | None = None, models: Path | None = None, copies: int | None = None
) -> Study:
    """Read a study; relative paths in it are relative to the file.

    Relative sources and models are relative to the folders that its `data` and `models` name, or to those
    passed here. `[defaults]` has fields of every silo. A silo with `copies = n` is n silos, with numbers
    behind their names; `copies` is another n for all of these.

    Raises:
        StudyUnusable: the file is unreadable, a field is missing, unknown or invalid, or a folder is missing.
    """
    content = content_of(file)
    home = file.absolute().parent
    places = {
        "data": folder_of(content.pop("data", None), data, home, "data"),
        "models": folder_of(content.pop("models", None), models, home, "models"),
    }
    methods = content.get("method")
    if isinstance(methods, dict):
        # Before validation, because fields of the plan stand beside the method's own in the file.
        content["method"] = {name: method_table(table) for name, table in methods.items()}
    defaults = content.pop("defaults", {})
    if not isinstance(defaults, dict):
        raise StudyUnusable(f"{file} is not a study: defaults: must be a table")
    silos = content.get("silo")
    if isinstance(silos, list):
        if copies is not None:
            # Before validation, which sees every copy as a silo.
            silos = with_copies(silos, defaults, copies)
        content["silo"] = [copy for table in silos for copy in copies_of(table, defaults, file)]
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        problem = complaints(error, Study)
        raise StudyUnusable(
            f"{file} is not a study: {problem} (docs/reference/studies.md describes the fields)"
        ) from error
    # Another number is another study, with results of its own.
    name = file.stem if copies is None else f"{file.stem}-x{copies}"
    return _placed(study, home, **places).named(name)


def _placed(study: Study, home: Path, *, data: Path, models: Path) -> Study:
    def source(table: BaseModel) -> dict[str, str]:
        values = {field: getattr(table, field) for field in _SOURCES}
        return {field: _source(value, data) for field, value in values.items() if value is not None}

    silos = [
        silo.model_copy(update=source(silo) | {"model": _model(silo.model, models)}) for silo in study.silo
    ]
    return study.model_copy(
        update={
            "silo": with_categories(silos, study.partition),
            "partition": _partition(study.partition, home),
            "source": [table.model_copy(update=source(table)) for table in study.source],
            "pivot_model": _model(study.pivot_model, models) if study.pivot_model is not None else None,
            "anchors": home / study.anchors.expanduser() if study.anchors is not None else None,
        }
    )


def _partition(partition: Partition | None, home: Path) -> Partition | None:
    """Return a partition with the path of its file."""
    if not isinstance(partition, CategoryPartition | ClientPartition) or partition.file is None:
        return partition
    return partition.model_copy(update={"file": home / partition.file.expanduser()})


def _source(value: str, folder: Path) -> str:
    return value if value.startswith(HUB) else str(folder / Path(value).expanduser())


def _model(value: str, folder: Path) -> str:
    """Return the resolved path of a model's folder or .gguf file if it exists, else the hub id unchanged."""
    place = (folder / Path(value).expanduser()).resolve()
    # A hub id looks like a relative path.
    return str(place) if place.exists() else value


def _repeated(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def content_of(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(file))
    except IsADirectoryError as error:
        raise StudyUnusable(f"{file} is a folder; pass the TOML file of a study") from error
    except OSError as error:
        raise StudyUnusable(f"{file} cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise StudyUnusable(f"{file} is not TOML ({error}); correct the file") from error


def folder_of(named: object, passed: Path | None, home: Path, field: str) -> Path:
    """Return the folder of relative paths: the one passed, else the study's, else that of its file."""
    if passed is None and named is None:
        return home
    if passed is None and not isinstance(named, str):
        raise StudyUnusable(f"{field}: must be the path of a folder")
    folder = passed.expanduser().absolute() if passed is not None else home / Path(str(named)).expanduser()
    if not folder.is_dir():
        raise StudyUnusable(f"{field}: there is no folder {folder}; pass one with --{field}")
    return folder


def method_table(table: object) -> object:
    """Split a method's table into the method's own fields and its plan."""
    if not isinstance(table, dict):
        return table
    fields: dict[str, Any] = {key: value for key, value in table.items() if key in _METHOD_FIELDS}
    return fields | {"plan": {key: value for key, value in table.items() if key not in _METHOD_FIELDS}}


def with_copies(silos: list[Any], defaults: dict[str, Any], count: int) -> list[object]:
    """Return the tables of silos with `count` copies of those that are copied."""
    copied = [isinstance(table, dict) and "copies" in defaults | table for table in silos]
    if not any(copied):
        raise StudyUnusable("no silo of the study has copies; leave --copies out")
    return [
        table | {"copies": count} if is_copied else table
        for table, is_copied in zip(silos, copied, strict=True)
    ]


def copies_of(table: object, defaults: dict[str, Any], file: Path) -> list[object]:
    """Return the silos of a table, with the defaults for the fields that it lacks."""
    if not isinstance(table, dict):
        # Not a table: the validation says so, with the field's name.
        return [table]
    silo = defaults | table
    if "copies" not in silo:
        return [silo]
    count = silo.pop("copies")
    if not isinstance(count, int) or count < 1:
        raise StudyUnusable(f"{file} is not a study: silo.copies: must be a whole number from 1 on")
    return [silo | {"name": f"{silo.get('name', '')}-{number}"} for number in range(1, count + 1)]
