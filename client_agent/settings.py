"""Settings of a silo: a TOML file; every option can also be set as TESSERA_AGENT_<OPTION>."""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from client_agent.errors import SettingsUnusable
from client_agent.policy import Policy
from client_agent.row_template import RowTemplate, require_no_names
from schemas.identity.plain_http import is_exposed
from schemas.messages.faults import faults_of
from schemas.trackers.options import TrackerName, TrackerOptions, require_addresses
from schemas.user_files import read_text

log = logging.getLogger(__name__)

MetricName = Literal["option_accuracy", "exact_match", "f1", "rouge_l", "number"]
"""The metrics of answers beside the loss.

The same names are in `client_agent.model.examples`, which needs transformers.
"""

_PREFIX = "TESSERA_AGENT_"
_COMMAND_NAMES = ("name", "token", "log_level")
"""Variables that commands read, and that are no options of silo.toml."""
_FOLDER = "tessera-agent"
_CORRECT = f"Correct the file, or set an option as {_PREFIX}<OPTION>."
_CONFIGURE = (
    f"Pass --config with a silo.toml, which `tessera agent init` writes, or set options as {_PREFIX}<OPTION>."
)
_SERVED = "tessera-served"
ServedFormat = Literal["peft", "vllm", "gguf"]
Quantization = Literal["none", "nf4", "int8"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
OptimizerName = Literal["adamw", "adamw8bit"]
GeneratedScores = Literal["rounds", "ends"]


class TrainerTable(BaseModel):
    """Options of a trainer, which its package checks."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ExportTable(BaseModel):
    """What happens with each new revision of the kept state, for a server that reads a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    after_round: ServedFormat | None = None
    """The format in which each new revision is written; by default none is."""
    folder: Path = Path(_SERVED)
    """The folder of the exported revisions, and of the link `current`."""
    run: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A command that runs in `folder` after `current` has moved: a program and arguments, without a shell."""
    run_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """The time after which the command is stopped; training waits for it."""
    readers: Literal["owner", "group", "all"] = "owner"
    """Who may read the exported files on this machine, such as the user of the server."""
    flat: bool = False
    """Whether experts that are weighed by token are exported with equal weights for all tokens."""

    @model_validator(mode="after")
    def _runs_after_an_export(self) -> Self:
        if self.run and self.after_round is None:
            raise ValueError("run needs `after_round`, since it runs after an export")
        return self


class AgentSettings(BaseSettings):
    """One silo: its coordinator, base model, data, and the folder of the agent's state."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=_PREFIX,
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        use_attribute_docstrings=True,
    )

    url: HttpUrl
    """The coordinator, like https://tessera.example.org."""
    insecure: Annotated[bool, Field(validate_default=True)] = False
    """Whether `url` may be plain http:// to another machine, where the network can read every adapter."""
    folder: Path = Path(_FOLDER)
    """The folder of the private key, the rounds and the trained adapters; back it up."""
    model: str
    """The base model: a folder, a .gguf file (converted once into `folder`), or a model's id on the hub."""
    pivot_model: str | None = None
    """The model that all silos share for gradient sketches and alignment; needed if it is not `model`."""
    roster: Path | None = None
    """A JSON file of the members' names and public keys, for plans with a pinned roster_policy."""
    train: str
    """Training examples: a .jsonl, .json, .csv or .parquet file, a saved data set, or `hub:<id>:<split>`."""
    validation: str | None = None
    """Examples that choose the learning rate and the personal model; by default a share of `train`, chosen by
    a stable hash.
    """
    test: str | None = None
    """Held-out examples for scores; by default a share of `train`, chosen by a stable hash."""
    format: str | None = None
    """The format of rows, or a task template (`tessera agent data --help`); by default found by columns."""
    template: RowTemplate | None = None
    """Your own template in place of `format`: `{ prompt = "Q: {text}\\nA:", answer = "{label}" }`."""
    columns: tuple[tuple[str, str], ...] = ()
    """Columns of the data by the names of the format, where they differ: `{ prompt = "question" }`."""
    ignore_columns: tuple[str, ...] = ()
    """Columns of rows, and keys of turns, to ignore: `["label"]`."""
    metrics: tuple[MetricName, ...] | None = None
    """The metrics of answers beside the loss; by default those of the task template."""
    generated_scores: GeneratedScores = "rounds"
    """When answers are generated for metrics that need them: in all `rounds`, or at both `ends`, for the
    first and the last state of the silo only, which takes less time.
    """
    skip_bad_rows: bool = False
    """Whether rows that cannot be read as examples are counted and skipped; otherwise the agent stops."""
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The held-out share of `train` if `test` is not set."""
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of the remaining examples of `train` for validation if `validation` is not set; 0 = none."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:<n>`; auto is the GPU if there is one."""
    dtype: Dtype = "auto"
    """The base model's type: auto is bfloat16 on a GPU or when quantised, else float32. Adapters: float32."""
    quantization: Quantization = "none"
    """The format of the base model's linear layers: `none` is `dtype`, `nf4` 4 bits, `int8` 8 bits."""
    chat_template: str | None = None
    """`plain` or a .jinja file, in place of the model's chat template; base models may have none."""
    optimizer: OptimizerName = "adamw"
    """The optimiser of local training; `adamw8bit` stores the moments of large adapters in 8 bits."""
    prefix_cache_mib: Annotated[int, Field(ge=0)] = 4096
    """The limit in MiB of stored outputs of the layers below the first adapter, in `folder`. The outputs are
    computed once per text if these layers are half of all or more; 0 = compute them in each step. The text
    can be reconstructed from them.
    """
    packing: bool = False
    """Whether several short texts share a row in training, each with its own attention, to save padding."""
    trainer: str | None = None
    """The name of an installed trainer that replaces Tessera's own training loop."""
    trainer_options: TrainerTable = TrainerTable()
    """Options of `trainer`; its package describes them."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """The number of CPU threads; by default PyTorch's. Set it to 1 when several agents share a machine."""
    request_deadline_seconds: Annotated[float, Field(gt=0)] = 900.0
    """Seconds for which a request is retried before the agent logs the failure; large bodies have longer."""
    max_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The limit on the epsilon of gradient sketches, above which plans are refused; by default the plan's."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The largest delta of gradient sketches at which `max_epsilon` may hold; unused without that."""
    report_progress: bool = True
    """Whether the agent reports step, speed and time left, and the loss unless losses are summed."""
    report_to: tuple[TrackerName, ...] = ()
    """The trackers that record losses, scores and sizes of this silo; each needs the extra of its name."""
    tracker_folder: Path | None = None
    """The folder of the trackers' files; by default `trackers` in `folder`."""
    mlflow_uri: str | None = None
    """An MLflow server or database in place of a SQLite file; recorded values then leave this machine."""
    wandb_url: str | None = None
    """A W&B server in place of files, such as https://api.wandb.ai; recorded values then leave this machine.
    """
    min_voices: Annotated[int, Field(ge=1)] = 1
    """The smallest number of peers in a served mixture; plans with a smaller one are refused."""
    policy: Policy = Policy()
    """Rules that a plan must meet before anything is trained or sent: allowed `strategies` and `modules`,
    `max_update_bytes`, the kinds of data that the agent `sends` beside updates, `max_training_epsilon`, and
    the digest of one `plan`. A rule that is not set allows everything.
    """
    lora_rank: Annotated[int, Field(ge=1)] | None = None
    """The first rank of this silo under a strategy with mixed ranks; by default the plan's."""
    checkpoint_seconds: Annotated[float, Field(ge=1)] = 180.0
    """Seconds between two stored positions of a round's training; a killed agent loses no more than that."""
    keep_rounds: Annotated[int, Field(ge=1)] = 2
    """The number of finished rounds that stay on disk."""
    keep_revisions: Annotated[int, Field(ge=1)] = 10
    """The number of kept states that stay on disk as revisions. The newest, the one with the lowest
    validation loss, and the one that is served are never deleted.
    """
    revisions_mib: Annotated[int, Field(ge=1)] = 4096
    """The limit in MiB of all revisions; the same three are never deleted."""
    export: ExportTable = ExportTable()
    """Export of each new revision for a server: the format `after_round`, the `folder`, a command to `run`
    there within `run_seconds`, the `readers` of the files (`owner`, `group` or `all`), and whether experts
    that are weighed by token are written `flat`.
    """

    @classmethod
    def from_toml(cls, file: Path | str) -> AgentSettings:
        """Read a silo's TOML file; the environment overrides it. See `read_settings`."""
        return read_settings(Path(file))

    @field_validator("columns", mode="before")
    @classmethod
    def _sorted_pairs(cls, columns: object) -> object:
        return tuple(sorted(columns.items())) if isinstance(columns, Mapping) else columns

    @model_validator(mode="after")
    def _reads_rows_in_one_way(self) -> Self:
        if self.template is not None:
            require_no_names(self.format, self.columns)
        return self

    @model_validator(mode="after")
    def _options_have_a_trainer(self) -> Self:
        if self.trainer_options.model_extra and self.trainer is None:
            raise ValueError("trainer_options need `trainer`, the name of the trainer that they are for")
        return self

    @model_validator(mode="after")
    def _has_trackers_of_its_addresses(self) -> Self:
        require_addresses(self.report_to, self.mlflow_uri, self.wandb_url)
        return self

    @property
    def trackers(self) -> TrackerOptions:
        folder = self.tracker_folder or self.folder / "trackers"
        return TrackerOptions(self.report_to, folder, self.mlflow_uri, self.wandb_url)

    @field_validator("insecure")
    @classmethod
    def _is_encrypted(cls, insecure: bool, values: ValidationInfo) -> bool:
        url = values.data.get("url")
        if url is not None and not insecure and is_exposed(str(url)):
            raise ValueError(
                f"{url} is not encrypted: anyone on the network can read the adapters; use https://, or set "
                "insecure = true in a trusted network"
            )
        return insecure

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: the environment overrides the file, whose values are arguments."""
        return env_settings, init_settings


def read_settings(file: Path | None) -> AgentSettings:
    """Read a TOML file and the environment; the file's paths, and the default `folder`, are relative to it.

    Raises:
        SettingsUnusable: the file cannot be read, or an option is missing, unknown or invalid.
    """
    for sentence in unread(os.environ):
        log.warning(sentence)
    options = _from_file(file) if file is not None else {}
    if file is not None:
        options.setdefault("folder", file.parent / _FOLDER)
    try:
        return AgentSettings(**options)
    except SettingsError as error:
        option = re.search(r'"(\w+)"', str(error))
        variable = f"{_PREFIX}{option[1].upper()}" if option else f"a variable {_PREFIX}<OPTION>"
        raise SettingsUnusable(
            f"{variable} is not JSON, in which lists and tables are written, such as '[\"exact_match\"]'; "
            "correct the variable"
        ) from error
    except ValidationError as error:
        faults = faults_of(error.errors(include_input=False, include_url=False), AgentSettings, "option")
        lines = [f"  {_named(path)}: {text}" if path else f"  {text}" for path, text in faults]
        source = str(file) if file is not None else "the environment"
        raise SettingsUnusable(
            f"{source} is not usable:\n" + "\n".join(lines) + "\n" + (_CORRECT if file else _CONFIGURE)
        ) from error


def unread(variables: Iterable[str]) -> list[str]:
    """Return a sentence for each unknown `TESSERA_AGENT_*` variable, with the most similar option."""
    known_names = [_PREFIX + name.upper() for name in (*AgentSettings.model_fields, *_COMMAND_NAMES)]
    sentences = []
    for name in sorted(variable.upper() for variable in variables):
        if name.startswith(_PREFIX) and name not in known_names:
            near = get_close_matches(name, known_names, n=1, cutoff=0.8)
            sentences.append(f"{name}: not read by any option{f'; did you mean {near[0]}?' if near else ''}")
    return sentences


def _named(path: str) -> str:
    """Return the path of an option, or the variable that it comes from, which overrides the file."""
    variable = f"{_PREFIX}{path.partition('.')[0].upper()}"
    return variable if os.environ.get(variable) else path


def _from_file(file: Path) -> dict[str, Any]:
    try:
        options = tomllib.loads(read_text(file))
    except OSError as error:
        raise SettingsUnusable(
            f"{file} cannot be read ({error.strerror}); pass a silo.toml, which `tessera agent init` writes"
        ) from error
    except ValueError as error:
        raise SettingsUnusable(f"{file} is not TOML ({error}); correct the file") from error
    for option in ("folder", "roster", "tracker_folder"):
        if isinstance(options.get(option), str):
            options[option] = file.parent / Path(options[option]).expanduser()
    for option in ("train", "validation", "test"):
        value = options.get(option)
        if isinstance(value, str) and not value.startswith("hub:"):
            options[option] = str(file.parent / Path(value).expanduser())
    for option in ("model", "pivot_model"):
        value = options.get(option)
        if isinstance(value, str):
            place = file.parent / Path(value).expanduser()
            options[option] = str(place) if place.exists() else value
    _place_export(options, file.parent)
    template = options.get("chat_template")
    if isinstance(template, str) and template != "plain":
        options["chat_template"] = str(file.parent / Path(template).expanduser())
    return options


def _place_export(options: dict[str, Any], beside: Path) -> None:
    """Make the folder of exports, and the path of the command, relative to the file's folder."""
    export = options.get("export", {})
    if not isinstance(export, dict):
        return
    folder, command = export.get("folder", _SERVED), export.get("run")
    if isinstance(folder, str):
        export["folder"] = beside / Path(folder).expanduser()
    # A plain name is searched for in PATH.
    if isinstance(command, list) and command and isinstance(command[0], str) and "/" in command[0]:
        export["run"] = [str(beside.absolute() / Path(command[0]).expanduser()), *command[1:]]
    options["export"] = export
