"""The errors of the secure sum: a message at the wrong time, and an invalid message of each step."""

from __future__ import annotations

from coordinator.errors import Refusal, WeakPublicKey
from coordinator.secure_sum.phases import Phase


class PhaseMismatch(Refusal):
    """The session or step of a request is not the current one."""

    status, slug, title = 409, "phase-mismatch", "This step of the sum is not due; see `session` and `step`"


class OrganisationTaken(Refusal):
    """Another client of the organisation was ready first."""

    status, slug, title = 409, "organisation-taken", "Another client of your organisation is in the sum"


class ShareList(Refusal):
    """A message of step 1 is not acceptable."""

    status, slug, title = (
        422,
        "share-list",
        "The shares do not fit the members of step 0; make one ciphertext for each other member",
    )


class MaskedVector(Refusal):
    """A message of step 2 is not acceptable."""

    status, slug, title = (
        422,
        "masked-vector",
        "The masked vector is wrong; pack the values of all segments of the terms, and prove counts",
    )


class StatementInvalid(Refusal):
    """A message of step 3 is not acceptable."""

    status, slug, title = (
        422,
        "statement-invalid",
        "The confirmation is wrong; sign the sets that steps 1 and 2 of this session returned",
    )


class ShareInvalid(Refusal):
    """A message of step 4 is not acceptable."""

    status, slug, title = (
        422,
        "share-invalid",
        "The shares are wrong; send one per member of step 1: of `b` for members of step 2, else of `s`",
    )


NOT_ACCEPTABLE: dict[Phase, type[Refusal]] = {
    "keys": WeakPublicKey,
    "shares": ShareList,
    "masked": MaskedVector,
    "confirm": StatementInvalid,
    "unmask": ShareInvalid,
}
"""The error of a message of each step that fails a check."""
