"""Files of public anchor texts, as options of commands name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from client_agent.cli.console import read_file
from client_agent.errors import PlanUnusable

if TYPE_CHECKING:
    from schemas.messages.alignment import Anchor


def read_anchor_file(file: Path) -> list[Anchor]:
    """Read the texts of a file.

    Raises:
        PlanUnusable: the file has no anchor texts in the expected form.
    """
    from pydantic import ValidationError

    from schemas.messages.alignment import Anchors
    from schemas.messages.faults import complaints

    try:
        return Anchors.model_validate_json(read_file(file)).anchors
    except ValidationError as error:
        raise PlanUnusable(
            f"{file} is not a file of anchor texts ({complaints(error, Anchors)}); "
            "`tessera agent write-anchors` writes one"
        ) from error
