"""The table of hostile inputs: a test for each row."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from coordinator.app import create_app
from coordinator.settings import Settings
from tests.attacks.hostile import (
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
    14: test_slow_peers.test_a_trickling_body_times_out_after_its_grace,
    43: test_message_rows.test_concurrent_replicas_accept_an_update_once,
    51: test_load_rows.test_polling_limits_apply_to_one_client,
    52: test_load_rows.test_uploads_are_refused_on_a_nearly_full_disk,
    53: test_pipelines.test_pipelined_requests_cost_little,
}
"""Rows that take more than one input."""


def test_rows_are_tested_or_listed_as_absent() -> None:
    tabled = {case.row for module in TABLES for case in module.CASES}
    assert sorted([*tabled, *TOLD_BY, *NOT_THERE]) == list(range(1, LAST_ROW + 1))


def test_the_openapi_document_has_no_idempotency_key() -> None:
    document = str(create_app(Settings(_env_file=None)).openapi()).lower()
    assert "idempotency-key" not in document
