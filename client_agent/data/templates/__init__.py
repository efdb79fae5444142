"""Task templates: a file for each data set, found by its name, with its prompt and its completion."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import cast

from client_agent.data.formats import Format
from client_agent.errors import DataInvalid


@cache
def template_names() -> tuple[str, ...]:
    """List the templates: the files of this folder that define `examples`."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])))


def template(name: str) -> Format:
    """Load a template by its name.

    Raises:
        DataInvalid: there is none of this name.
    """
    if name not in template_names():
        raise DataInvalid(f"there is no task template {name!r}; there are {', '.join(template_names())}")
    return cast(Format, importlib.import_module(f"{__name__}.{name}").examples)
