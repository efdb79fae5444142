"""The table of hostile inputs has no row that nobody tests."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from coordinator.app import create_app
from coordinator.settings import Settings
from tests.hostile import (
    test_codec_rows,
    test_identity_rows,
    test_load_rows,
    test_message_rows,
    test_pipelines,
    test_recipe_rows,
    test_slow_peers,
    test_sum_rows,
    test_tensor_rows,
    test_transport_rows,
)

TABLES: tuple[ModuleType, ...] = (
    test_identity_rows,
    test_transport_rows,
    test_codec_rows,
    test_tensor_rows,
    test_recipe_rows,
    test_message_rows,
    test_sum_rows,
)
LAST_ROW = 53
NOT_THERE = {
    44: "Idempotency-Key",
}
"""Rows about what this version does not have."""


TOLD_BY: dict[int, Callable[..., None]] = {
    14: test_slow_peers.test_a_body_of_a_byte_a_second_is_given_up_after_its_grace,
    43: test_message_rows.test_the_same_update_twice_at_once_by_two_replicas_is_taken_once,
    51: test_load_rows.test_a_client_that_polls_too_often_is_told_when_to_come_back_and_nobody_else_is,
    52: test_load_rows.test_nothing_is_taken_while_the_disk_is_nearly_full,
    53: test_pipelines.test_pipelined_requests_cost_little,
}
"""Rows that take more than one input."""


def test_every_row_is_tested_or_about_what_does_not_exist() -> None:
    tabled = {case.row for module in TABLES for case in module.CASES}
    assert sorted([*tabled, *TOLD_BY, *NOT_THERE]) == list(range(1, LAST_ROW + 1))


def test_what_does_not_exist_is_not_in_the_document() -> None:
    document = str(create_app(Settings(_env_file=None)).openapi()).lower()
    assert "idempotency-key" not in document
