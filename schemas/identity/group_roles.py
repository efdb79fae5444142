"""The roles of people, and which of them the groups of an identity provider have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from schemas.messages.tokens import PersonRole

RANKS: Final[Mapping[PersonRole, int]] = {"auditor": 1, "operator": 2, "admin": 3}
"""A role may do what those below it may."""


def roles_of_groups(text: str) -> dict[str, dict[str | None, PersonRole]]:
    """Return the roles by group of `group=role, group=role@federation, ...`.

    Raises:
        ValueError: an entry is malformed, or there is no such role.
    """
    groups: dict[str, dict[str | None, PersonRole]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        # From the right: names of groups may contain the sign.
        group, equals, right = entry.rpartition("=")
        role, _, federation = right.partition("@")
        chosen = next((name for name in RANKS if name == role.strip()), None)
        if not equals or not group.strip() or chosen is None or right.endswith("@"):
            raise ValueError(
                f"{entry!r} is not group=role or group=role@federation, with a role of "
                f"{', '.join(get_args(PersonRole))}"
            )
        groups.setdefault(group.strip(), {})[federation.strip() or None] = chosen
    return groups
