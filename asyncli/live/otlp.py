"""Sends a run's numbers to an OpenTelemetry collector, by OTLP over HTTP.

They are the metrics of :mod:`asyncli.live.exposition`, under the same names but for the ``_total``
of a counter, which OpenTelemetry has as a property. All are cumulative: what could not be sent is
in what is sent next, so nothing is kept and nothing is lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from asyncli import __version__
from asyncli.live.exposition import families_of
from asyncli.live.feed import RunFeed
from asyncli.live.otlp_exchange import BoundedSession

# How often it is asked whether the run has ended.
_LOOK_S = 0.5
# The cost and the limits of a short run are computed in a second or two after its end.
_COMPUTES_S = 3.0
# The usual port of OTLP by gRPC, which answers HTTP with bytes of its own.
_PORT_OF_GRPC = 4317
#: The unit of a metric by the last word of its name (UCUM, as OpenTelemetry asks for).
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
#: What to do about an answer that refuses, by its status.
_REMEDIES = {
    401: "check OTEL_EXPORTER_OTLP_HEADERS",
    403: "check OTEL_EXPORTER_OTLP_HEADERS",
    404: "check the path: asyncli appends /v1/metrics to the collector's URL",
    429: "send less often, by OTEL_METRIC_EXPORT_INTERVAL",
}


class OtlpSender:
    """Sends to ``endpoint`` (a URL with its path); what else it needs is in OTEL_EXPORTER_OTLP_*.

    ``last_s``: how long the last values may take after the soak's end. ``say`` gets a line when
    sending fails for the first time, when it succeeds again, and when the last values could not be
    sent: without a secret, and without what the collector answers.
    """

    def __init__(
        self, endpoint: str, every_s: float, last_s: float, say: Callable[[str], None]
    ) -> None:
        self._place = place_of(endpoint)
        self._every_s = every_s
        self._last_s = last_s
        self._say = say
        self._session = _NotingSession()
        self._exporter = OTLPMetricExporter(endpoint=endpoint, session=self._session)
        # One at a time: a slow collector gets the newest values next, and no queue.
        self._worker = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._has_warned = False
        self._has_recovered = False
        #: Why the last values that were sent did not arrive; "" if they did.
        self._why = ""

    async def send_until(self, feed: RunFeed, ended: asyncio.Event) -> None:
        """Send the values of a feed that somebody keeps up to date: every so often, and the last
        ones when the run is over, or some seconds after ``ended``.
        """
        sending = asyncio.create_task(self._send_until_over(feed, ended))
        ending = asyncio.create_task(ended.wait())
        await asyncio.wait({sending, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({sending}, timeout=self._last_s)
        ending.cancel()
        if not sending.done():
            sending.cancel()
            self._why = self._why or f"{self._place} does not answer in time"
        if self._why:
            self._say(f"warning: --otlp: the last values were not sent: {self._why}")
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send_until_over(self, feed: RunFeed, ended: asyncio.Event) -> None:
        while True:
            due_s = time.monotonic() + self._every_s
            is_last = await self._is_over(feed, ended)
            await self._send(feed)
            if is_last:
                return
            while time.monotonic() < due_s and not (feed.state.over or ended.is_set()):
                await asyncio.sleep(_LOOK_S)

    async def _is_over(self, feed: RunFeed, ended: asyncio.Event) -> bool:
        """Whether no further value comes. Of a run that is over, the cost is awaited."""
        if not (feed.state.over or ended.is_set()):
            return False
        latest_s = time.monotonic() + _COMPUTES_S
        while time.monotonic() < latest_s and not (feed.state.over and feed.is_final):
            await asyncio.sleep(_LOOK_S)
        return True

    async def _send(self, feed: RunFeed) -> None:
        data = metrics_of(feed, time.time_ns())
        loop = asyncio.get_running_loop()
        self._why = await loop.run_in_executor(self._worker, self._export, data)
        if not self._why:
            if self._has_warned and not self._has_recovered:
                self._has_recovered = True
                self._say(f"--otlp: {self._place} takes the values again")
            return
        if not self._has_warned:
            self._has_warned = True
            self._say(
                f"warning: --otlp: {self._why}; the soak goes on, and asyncli sends again "
                f"every {self._every_s:g} s"
            )

    def _export(self, data: MetricsData) -> str:
        """Send; why it did not succeed, or ""."""
        self._session.why = ""
        try:
            result = self._exporter.export(data)
        except Exception as error:
            # What the exporter does not catch is of its settings, such as a wrong certificate.
            return f"{self._place} {_why_of(error)}"
        # The exporter takes a redirection, which it does not follow, for a success.
        if result is MetricExportResult.SUCCESS and not self._session.why:
            return ""
        return f"{self._place} {self._session.why or 'was not reached'}"


class _NotingSession(BoundedSession):
    """Notes why the last request failed, in words that show nothing of it or of its answer."""

    why = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        try:
            response = super().send(request, **options)
        except Exception as error:
            self.why = _why_of(error)
            port = urlsplit(request.url or "").port
            if port == _PORT_OF_GRPC and isinstance(error, requests.ConnectionError):
                self.why += "; OTLP over HTTP has another port, usually 4318"
            raise
        self.why = _why_refused(response.status_code)
        return response


def _why_of(error: Exception) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "has no certificate that is trusted here (OTEL_EXPORTER_OTLP_CERTIFICATE)"
    if isinstance(error, requests.exceptions.Timeout):
        return "does not answer in time"
    if isinstance(error, requests.exceptions.ConnectionError):
        return "cannot be reached, or breaks the connection off"
    if isinstance(error, OSError):
        return "cannot be sent to: a file that OTEL_EXPORTER_OTLP_* names cannot be read"
    return f"cannot be sent to ({type(error).__name__})"


def _why_refused(status: int) -> str:
    """ "" for an answer that accepts."""
    if 200 <= status < 300:
        return ""
    try:
        phrase = f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    remedy = _REMEDIES.get(status)
    return f"answers {phrase}" if remedy is None else f"answers {phrase} ({remedy})"


def place_of(endpoint: str) -> str:
    """The host and port of a URL: what may be printed of it."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def metrics_of(feed: RunFeed, now_ns: int) -> MetricsData:
    """All metrics of a run, with the instant ``now_ns`` (ns since 1970)."""
    began_ns = int(feed.began_s * 1e9) or now_ns
    metrics = []
    for family in families_of(feed):
        # Of what is unknown so far, nothing is sent.
        if family.samples:
            metrics.append(_metric_of(family, began_ns, now_ns))
    scope = ScopeMetrics(InstrumentationScope("asyncli", __version__), metrics, "")
    return MetricsData([ResourceMetrics(_resource_of(feed), [scope], "")])


def _resource_of(feed: RunFeed) -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes before what asyncli says."""
    attributes: dict[str, Any] = {
        "service.name": "asyncli",
        "service.version": __version__,
        "service.instance.id": feed.run_id,
        "host.name": socket.gethostname(),
    }
    attributes.update(OTELResourceDetector().detect().attributes)
    return Resource.create(attributes)


def _metric_of(family: Family, began_ns: int, now_ns: int) -> Metric:
    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    data: Gauge | Histogram | Sum
    if family.type == "histogram":
        points = [_times(family, began_ns, now_ns)]
        data = Histogram(points, AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        totals = [_number(sample, began_ns, now_ns) for sample in family.samples]
        data = Sum(totals, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge([_number(sample, None, now_ns) for sample in family.samples])
    return Metric(family.name, family.documentation, unit, data)


def _number(sample: Sample, began_ns: int | None, now_ns: int) -> NumberDataPoint:
    """A count since ``began_ns``; None: a number that goes up and down."""
    value: int | float = float(sample.value)
    if began_ns is not None:
        value = int(value)
    return NumberDataPoint(
        attributes=dict(sample.labels),
        start_time_unix_nano=began_ns or 0,
        time_unix_nano=now_ns,
        value=value,
    )


def _times(family: Family, began_ns: int, now_ns: int) -> HistogramDataPoint:
    """A histogram without labels. Prometheus counts what is below each bound, OpenTelemetry what is
    between two.
    """
    values = {sample.name: sample.value for sample in family.samples}
    below = list(_below(family.samples))
    counts = []
    before = 0
    for _, count in below:
        counts.append(count - before)
        before = count
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=int(values[f"{family.name}_count"]),
        sum=values[f"{family.name}_sum"],
        bucket_counts=counts,
        # The last bucket has no upper bound.
        explicit_bounds=[bound for bound, _ in below[:-1]],
        min=None,
        max=None,
    )


def _below(samples: Iterable[Sample]) -> Iterator[tuple[float, int]]:
    for sample in samples:
        if sample.name.endswith("_bucket"):
            yield float(sample.labels["le"]), int(sample.value)
