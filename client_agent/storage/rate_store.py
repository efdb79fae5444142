"""Store learning-rate searches, finished or not, one file each. Needs no torch."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_agent.storage.files import write_durably
from schemas.messages.base import Strict

log = logging.getLogger(__name__)

"""The folder of an agent's searches: of a federation, or of `tessera agent train`."""

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TriedRate(Strict):
    """A learning rate and its loss on the validation side; None = training diverged."""

    rate: _Rate
    loss: _Loss | None


class RateSearch(Strict):
    """The rates of a search in the order in which they were tried; `chosen` is None before the end."""

    tried: tuple[TriedRate, ...] = ()
    chosen: _Rate | None = None

    def __str__(self) -> str:
        losses = ", ".join(
            f"{t.rate:g}: {'diverged' if t.loss is None else f'{t.loss:.3f}'}"
            for t in sorted(self.tried, key=lambda tried: tried.rate)
        )
        return f"{self.chosen:g} ({losses})" if self.chosen is not None else f"searching ({losses})"


@dataclass(frozen=True, slots=True)
class RateStore:
    """Searches below one folder, by the digest of what they depend on."""

    folder: Path

    def read(self, key: str) -> RateSearch:
        """Return the search of a key; an empty one if there is none, or its file is damaged."""
        return _read(self.folder / f"{key}.json") or RateSearch()

    def write(self, key: str, search: RateSearch) -> None:
        write_durably(self.folder / f"{key}.json", search.model_dump_json().encode())

    def searching(self, key: str) -> AbstractContextManager[None]:
        """Return the context of a search; a store that processes share locks the key here."""
        return nullcontext()

    def newest(self) -> RateSearch | None:
        """Return the search that was written last, if any."""
        # Names are digests, so only the time of the write tells the order.
        files = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        searches = (_read(file) for file in reversed(files))
        return next((search for search in searches if search is not None), None)


def search_from(content: bytes, file: Path) -> RateSearch | None:
    """Parse the content of a file; None, and a line in the log, if it is damaged."""
    try:
        return RateSearch.model_validate_json(content)
    except ValidationError as error:
        log.warning("learning rate: %s is damaged and ignored (%s)", file, type(error).__name__)
        return None


def _read(file: Path) -> RateSearch | None:
    try:
        return search_from(file.read_bytes(), file)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("learning rate: %s is damaged and ignored (%s)", file, type(error).__name__)
        return None
