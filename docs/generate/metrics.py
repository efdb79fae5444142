"""The page of Prometheus metrics, from the registry of a coordinator process."""

from __future__ import annotations

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from coordinator.observability.metrics import Metrics
from docs.generate.markdown import block, code, page_of, sentence, table

_INTRODUCTION = """\
`GET /metrics` returns metrics in Prometheus' text format. It needs the token of a person, or no token with
`TESSERA_PUBLIC_METRICS=true` ([settings](settings.md#coordinator)). Counters and histograms belong to the
process that answers, since its start; add them up over replicas. Gauges come from the database and are the
same for all replicas. [Monitor a coordinator](../how-to/monitor.md) has a dashboard and alerts."""

_SCRAPE = """\
scrape_configs:
  - job_name: tessera
    scheme: https
    authorization:
      credentials_file: /etc/prometheus/tessera-token
    static_configs:
      - targets: ["tessera.example.org"]
"""

_QUERIES = (
    (
        "share of requests that failed on the server",
        'sum(rate(tessera_request_seconds_count{status=~"5.."}[5m])) / '
        "sum(rate(tessera_request_seconds_count[5m]))",
    ),
    (
        "95 % of requests are faster, by route",
        "histogram_quantile(0.95, sum by (le, route) (rate(tessera_request_seconds_bucket[5m])))",
    ),
    ("refused updates per hour, by reason", "sum by (reason) (increase(tessera_updates_refused_total[1h]))"),
    (
        "95 % of write transactions are faster",
        "histogram_quantile(0.95, sum by (le) (rate(tessera_write_seconds_bucket[5m])))",
    ),
    ("bytes received per second", "sum(rate(tessera_bytes_up_total[5m]))"),
)
_LABELS = {
    "reason": "slug of the [error](errors.md)",
    "method": "HTTP method",
    "route": "path with placeholders",
    "status": "HTTP status",
    "state": "state of the round, or of the expert",
}


def page() -> str:
    families = _families()
    rows = [
        (code(name), str(family._type), _labels(family) or "none", sentence(family._documentation))
        for name, family in families.items()
    ]
    buckets = [
        (code(name), ", ".join(f"{bound:g}" for bound in family._upper_bounds[:-1]))
        for name, family in families.items()
        if isinstance(family, Histogram)
    ]
    return page_of(
        "Metrics",
        "coordinator/observability/metrics.py",
        _INTRODUCTION,
        table(("metric", "type", "labels", "meaning"), rows),
        "## Buckets",
        "Upper bounds of the histograms' buckets, in seconds.",
        table(("histogram", "seconds"), buckets),
        "## Scraping",
        block("yaml", _SCRAPE),
        "## Queries",
        table(("question", "query"), [(question, code(query)) for question, query in _QUERIES]),
    )


def _families() -> dict[str, MetricWrapperBase]:
    metrics = Metrics()
    families = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    return {_sample_name(family): family for family in families}


def _sample_name(family: MetricWrapperBase) -> str:
    return f"{family._name}_total" if isinstance(family, Counter) else family._name


def _labels(family: MetricWrapperBase) -> str:
    return "; ".join(f"{code(label)}: {_LABELS[label]}" for label in family._labelnames)
