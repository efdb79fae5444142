"""Prometheus metrics of this process."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

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
_AGGREGATION_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)

_RECENT_SECONDS = 1.0

# Otherwise every counter has a second series.
disable_created_metrics()  # type: ignore[no-untyped-call]


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
        self._rounds = Gauge("tessera_rounds", "Rounds by state", ["state"], registry=self.registry)
        self._experts = Gauge(
            "tessera_experts", "Experts of stored banks by state", ["state"], registry=self.registry
        )

    def recent(self) -> bytes | None:
        text, now = self._rendered
        return text if time.monotonic() - now < _RECENT_SECONDS else None

    def render(self, rounds_by_state: Mapping[str, int], experts_by_status: Mapping[str, int]) -> bytes:
        """Render all metrics in Prometheus' text format; rounds and experts come from the database."""
        for gauge, counts in ((self._rounds, rounds_by_state), (self._experts, experts_by_status)):
            gauge.clear()
            for label, count in counts.items():
                gauge.labels(label).set(count)
        text = generate_latest(self.registry)
        self._rendered = text, time.monotonic()
        return text
