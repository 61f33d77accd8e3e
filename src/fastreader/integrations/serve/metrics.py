"""Prometheus metrics of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastreader.integrations.serve.packing import Totals

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Requests by path and status, their seconds, and the passes' tokens.

    Args:
        totals: returns what the passes computed.
        active: returns the number of requests under way.
    """

    def __init__(self, totals: Callable[[], Totals], active: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "fastreader_requests", "Requests answered.", ("path", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "fastreader_request_seconds", "Time to answer.", ("path",), buckets=SECONDS, registry=self._registry
        )
        self._totals, self._active = totals, active
        self._registry.register(self)  # anything with `collect`

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are read at each scrape."""
        totals = self._totals()
        counts = (
            ("passes", "Packed passes.", totals.passes),
            ("computed_tokens", "Tokens computed in passes.", totals.computed_tokens),
            ("alone_tokens", "Tokens that the calls would have computed in separate passes.", totals.alone_tokens),
            ("written_tokens", "Tokens of generated texts.", totals.written_tokens),
        )
        for name, about, value in counts:
            yield CounterMetricFamily(f"fastreader_{name}", about, value=value)
        yield GaugeMetricFamily("fastreader_active_requests", "Requests under way.", value=self._active())
