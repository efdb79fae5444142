"""Prometheus metrics of this process."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_AGGREGATION_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
_WRITE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_RECENT_SECONDS = 1.0

# Otherwise every counter has a second series.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """Gauges that come from the database, the same in all processes.

    Attributes:
        rounds: number of rounds by state.
        stuck: number of rounds by state that wait longer than they should.
        experts: number of experts of stored banks by state.
        database_bytes: size of the database on its disk.
    """

    rounds: Mapping[str, int]
    stuck: Mapping[str, int]
    experts: Mapping[str, int]
    database_bytes: int


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rendered = b"", -math.inf
        self.updates_accepted = Counter(
            "tessera_updates_accepted", "Updates stored for the first time", registry=self.registry
        )
        self.updates_refused = Counter(
            "tessera_updates_refused", "Updates refused, by problem type", ["reason"], registry=self.registry
        )
        self.bytes_up = Counter(
            "tessera_bytes_up",
            "Encoded bytes of updates, join signatures and alignment packs accepted from clients,"
            " repeated ones once",
            registry=self.registry,
        )
        self.bytes_down = Counter(
            "tessera_bytes_down",
            "Encoded bytes of weights, experts, adapter states, anchors and alignment packs that clients"
            " began to download, counting ranges as requested",
            registry=self.registry,
        )
        self.aggregation_seconds = Histogram(
            "tessera_aggregation_seconds",
            "Time from claiming a round to publishing it",
            buckets=_AGGREGATION_SECONDS,
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "tessera_request_seconds",
            "Time from a request's headers to those of its response",
            ["method", "route", "status"],
            buckets=_LATENCY_SECONDS,
            registry=self.registry,
        )
        self.write_seconds = Histogram(
            "tessera_write_seconds",
            "Time of write transactions, from waiting for a connection and SQLite's lock to the commit",
            buckets=_WRITE_SECONDS,
            registry=self.registry,
        )
        self._rounds = Gauge("tessera_rounds", "Rounds by state", ["state"], registry=self.registry)
        self._experts = Gauge(
            "tessera_experts", "Experts of stored banks by state", ["state"], registry=self.registry
        )
        self._stuck = Gauge(
            "tessera_rounds_stuck",
            "Rounds by state that wait longer than TESSERA_STUCK_SECONDS",
            ["state"],
            registry=self.registry,
        )
        self._database_bytes = Gauge(
            "tessera_database_bytes", "Size of the database on its disk", registry=self.registry
        )
        self._describe_store()

    def _describe_store(self) -> None:
        self.payload_store_up = self._gauge_of_one(
            "tessera_payload_store_up",
            "0 if the payload store did not answer when it was last tried, each minute; else 1",
        )
        self.payload_store_owned = self._gauge_of_one(
            "tessera_payload_store_owned",
            "0 if another database claims the payload store, so that nothing is moved or deleted; else 1",
        )

    def _gauge_of_one(self, name: str, description: str) -> Gauge:
        gauge = Gauge(name, description, registry=self.registry)
        gauge.set(1)
        return gauge

    def recent(self) -> bytes | None:
        text, now = self._rendered
        # Anybody may ask for public metrics, so that they are rendered once a second at most.
        return text if time.monotonic() - now < _RECENT_SECONDS else None

    def render(self, stored: StoredFacts) -> bytes:
        """Render all metrics in Prometheus' text format."""
        counts_by_state = (
            (self._rounds, stored.rounds),
            (self._stuck, stored.stuck),
            (self._experts, stored.experts),
        )
        for gauge, counts in counts_by_state:
            gauge.clear()
            for label, count in counts.items():
                gauge.labels(label).set(count)
        self._database_bytes.set(stored.database_bytes)
        text = generate_latest(self.registry)
        self._rendered = text, time.monotonic()
        return text
