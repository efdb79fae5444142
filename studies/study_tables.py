"""The tables of a study's TOML file before they are validated: defaults, copies, folders."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from client_agent.errors import StudyUnusable
from schemas.user_files import read_text

_OF_METHODS = frozenset({"like", "alone", "control", "states"})


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
    fields: dict[str, Any] = {key: value for key, value in table.items() if key in _OF_METHODS}
    return fields | {"plan": {key: value for key, value in table.items() if key not in _OF_METHODS}}


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
        return [table]
    silo = defaults | table
    if "copies" not in silo:
        return [silo]
    count = silo.pop("copies")
    if not isinstance(count, int) or count < 1:
        raise StudyUnusable(f"{file} is not a study: silo.copies: must be a whole number from 1 on")
    return [silo | {"name": f"{silo.get('name', '')}-{number}"} for number in range(1, count + 1)]
