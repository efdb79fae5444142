"""Find the id of a federation, client or person's token that a command names by id or by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from schemas.names.spelling import normal_name

_ID = re.compile(r"[a-z]{3}_[0-9a-f]{24}")


class NotIdentified(Exception):
    """No entry has the id or name, or several have it; the message says which and what to do next."""


@dataclass(frozen=True, slots=True)
class NamedEntry:
    """An entry of a list: its id, name and state. One that is over counts only if no other has the name."""

    id: str
    name: str
    state: str = ""
    is_over: bool = False


def is_id(text: str) -> bool:
    """Whether a text has the form of ids, `fed_` and 24 hexadecimal digits."""
    return _ID.fullmatch(text) is not None


def id_of(text: str, noun: str, entries: Callable[[], Iterable[NamedEntry]], listed_by: str) -> str:
    """Return the id that a text is, or that of the only entry with this name.

    Args:
        noun: the kind of entry, such as `federation`.
        entries: reads the list; not called for a text in the form of ids.
        listed_by: the command that lists the entries.

    Raises:
        NotIdentified: no entry has this id or name, or several have the name.
    """
    # An id needs no list, which may have many pages.
    if is_id(text):
        return text
    known_entries = [*entries()]
    if any(entry.id == text for entry in known_entries):
        return text
    name = normal_name(text)
    for matches in (
        [entry for entry in known_entries if normal_name(entry.name) == name],
        [entry for entry in known_entries if normal_name(entry.name).casefold() == name.casefold()],
    ):
        matches = [entry for entry in matches if not entry.is_over] or matches
        if len(matches) == 1:
            return matches[0].id
        if matches:
            ids = ", ".join(f"{entry.id} ({entry.state})" if entry.state else entry.id for entry in matches)
            raise NotIdentified(f"several {noun}s have the name {text}: {ids}; use one of these ids")
    raise NotIdentified(f"no {noun} has the id or name {text!r}; `{listed_by}` lists them [not-found]")
