"""``asyncli soak --otlp``: a collector gets what /metrics and the run file have, and none that is down, slow or refuses disturbs the soak."""

from __future__ import annotations

import asyncio
import http.server
import socketserver
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from programs import Done, Program, here, recorded, report, require_whole, run, until
from prometheus_client.parser import text_string_to_metric_families
from provoked import an_nginx
from recording import write_run
from synthetic_run import a_run

from asyncli.cli import otlp_options
from asyncli.core.histogram import summed
from asyncli.live.exposition import exposition
from asyncli.live.feed import RunFeed

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'asyncli[otel]'")

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from asyncli.live.otlp import OtlpSender, metrics_of
from asyncli.live.otlp_exchange import MOST_BYTES, BoundedSession

HELD = 100
PACE = ["-c", str(HELD), "--ramp", "100/s", "-k", "2", "--hold", "5s", "--baseline", "0.5", "--residue", "0.2"]
SECRET = "a-secret-of-the-tests"
#: (Name, labels) -> value of the last request.
Values = dict[tuple[str, frozenset[tuple[str, str]]], Any]


class Collector(http.server.ThreadingHTTPServer):
    """Decodes what it is sent. ``answer``: the status for the request of this number."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.asked = 0
        super().__init__(("127.0.0.1", 0), Receiver)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Receiver(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        status = self.server.answer(self.server.asked)
        if status == 200:
            request = ExportMetricsServiceRequest.FromString(body)
            self.server.requests.append((self.path, dict(self.headers.items()), request))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 429:
            # Later than the library waits: it does not ask a second time by itself.
            self.send_header("Retry-After", "3600")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def a_collector(answer: Callable[[int], int] = lambda _: 200) -> Iterator[Collector]:
    collector = Collector(answer)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        collector.server_close()


def values_of(request: ExportMetricsServiceRequest) -> Values:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    values: Values = {}
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        assert kind is not None, metric.name
        for point in getattr(metric, kind).data_points:
            labels = frozenset((one.key, one.value.string_value) for one in point.attributes)
            if kind == "histogram":
                values[metric.name, labels] = (point.count, point.sum, list(point.bucket_counts), list(point.explicit_bounds))
            else:
                values[metric.name, labels] = getattr(point, point.WhichOneof("value"))
    return values


def number(values: Values, name: str, **labels: str) -> Any:
    return values.get((name, frozenset(labels.items())))


def soak(folder: Path, url: str, *options: str) -> Done:
    return run(folder, "soak", url, *PACE, "--out", "run.db", *options)


def test_a_collector_gets_what_the_run_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{SECRET}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=9")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    with an_nginx() as server, a_collector() as collector:
        options = ["--status-url", str(server.status_url), "--fail-if", "lost > 1%", "--otlp", collector.url]
        done = soak(tmp_path, server.url, *options)
        require_whole(done.status, report(tmp_path, "run.db"))
        requests = list(collector.requests)
    assert len(requests) >= 4
    assert {path for path, _, _ in requests} == {"/v1/metrics"}
    assert {headers["authorization"] for _, headers, _ in requests} == {f"Bearer {SECRET}"}
    (resource,) = requests[-1][2].resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    kept = recorded(tmp_path / "run.db")
    assert kept is not None
    assert about.items() >= {"service.name": "night", "service.version": "9", "deployment.environment.name": "test"}.items()
    assert about["service.instance.id"] == kept.id
    values = values_of(requests[-1][2])
    ticks = [tick for _, tick in kept.ticks]
    latency_us = summed([tick.latency_us for tick in ticks])
    assert number(values, "asyncli_run_over") == 1.0
    assert number(values, "asyncli_connections_opened") == sum(tick.opened for tick in ticks) == HELD
    assert number(values, "asyncli_heartbeats_sent") == sum(tick.sent for tick in ticks) > 0
    assert number(values, "asyncli_heartbeats_answered", status="200") == sum(tick.by_status.get(200, 0) for tick in ticks)
    count, sum_s, counts, bounds = number(values, "asyncli_heartbeat_latency_seconds")
    assert count == sum(counts) == latency_us.count
    assert len(counts) == len(bounds) + 1
    assert sum_s > 0
    # Counters never fall, and begin with the run.
    sent = [number(values_of(request), "asyncli_heartbeats_sent") for _, _, request in requests]
    assert sent == sorted(sent)
    assert SECRET not in done.out + done.log
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_the_metrics_of_a_scrape_and_of_a_sending_are_the_same(tmp_path: Path) -> None:
    feed = RunFeed(write_run(a_run(200, hold_s=30.0, fail_if=("lost > 1%",)), tmp_path / "run.db"))
    feed.open()
    try:
        until(lambda: feed.take(feed.read()) or feed.so_far is not None, "the cost")
        page, _ = exposition(feed, "")
        sent = values_of(encode_metrics(metrics_of(feed, time.time_ns())))
    finally:
        feed.close()
    scraped: Values = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            scraped[sample.name.removesuffix("_total"), frozenset(sample.labels.items())] = sample.value
    histograms = {"asyncli_heartbeat_latency_seconds", "asyncli_heartbeat_lateness_seconds"}
    for (name, labels), value in sent.items():
        if name in histograms:
            count, sum_s, counts, bounds = value
            assert scraped[f"{name}_count", labels] == count
            assert scraped[f"{name}_sum", labels] == sum_s
            for at, bound in enumerate(bounds):
                below = frozenset({("le", repr(bound))})
                assert scraped[f"{name}_bucket", below] == sum(counts[: at + 1])
        else:
            assert scraped[name, labels] == value, name
    others = {(name, labels) for name, labels in scraped if not name.startswith(tuple(histograms))}
    assert others == {(name, labels) for name, labels in sent if name not in histograms}
    assert len(others) > 30


@pytest.mark.parametrize("status", [401, 429, 307])
def test_a_collector_that_refuses_is_one_warning(tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    with an_nginx() as server, a_collector(lambda number: status if number <= 3 else 200) as collector:
        done = soak(tmp_path, server.url, "--otlp", collector.url)
        values = values_of(collector.requests[-1][2])
    require_whole(done.status, report(tmp_path, "run.db"))
    assert done.log.count("warning: --otlp") == 1
    assert {collector.place, str(status)} <= set(done.log.split())
    assert done.log.count("again\n") == 1
    assert number(values, "asyncli_run_over") == 1.0
    assert number(values, "asyncli_connections_opened") == HELD


def test_a_collector_that_is_down_disturbs_nothing(tmp_path: Path) -> None:
    with an_nginx() as server:
        done = soak(tmp_path, server.url, "--otlp", "http://127.0.0.1:9")
    require_whole(done.status, report(tmp_path, "run.db"))
    warnings = [line for line in done.log.splitlines() if "warning: --otlp" in line]
    assert len(warnings) == 2
    assert "127.0.0.1:9 cannot" in warnings[0]
    assert "not sent" in warnings[1]


def test_a_slow_collector_disturbs_nothing(tmp_path: Path) -> None:
    ended = threading.Event()
    with an_nginx() as server, a_collector(lambda _: 200 if ended.wait(120.0) else 503) as collector:
        with Program(tmp_path, "soak", server.url, *PACE, "--out", "run.db", "--otlp", collector.url) as program:
            until(lambda: (tmp_path / "run.db").exists() and is_complete(tmp_path / "run.db"), "the run's end")
            begun_s = time.monotonic()
            done = program.wait()
            took_s = time.monotonic() - begun_s
        ended.set()
    require_whole(done.status, report(tmp_path, "run.db"))
    assert "not sent" in done.log
    # Its report, and then the patience for the last values.
    assert took_s < 60.0


@contextmanager
def answering(head: bytes, piece: bytes, every_s: float) -> Iterator[tuple[str, list[int]]]:
    """A collector that answers with ``head`` and then with pieces without end, or 200 MB. The URL, and the sizes of what each
    connection was sent.
    """
    ended = threading.Event()
    sizes: list[int] = []

    class Endless(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            self.rfile.read(length)
            size = 0
            with suppress(OSError):
                self.wfile.write(head)
                while size < 200_000_000 and not ended.wait(every_s):
                    self.wfile.write(piece)
                    size += len(piece)
            sizes.append(size)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", sizes
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def sent_of_a_run(folder: Path, url: str) -> tuple[list[str], float]:
    """Sends the last values of a run that is over: what was said, and how long it took (s)."""
    feed = RunFeed(write_run(a_run(20, hold_s=5.0), folder / "run.db"))
    feed.open()
    said: list[str] = []
    ended = asyncio.Event()
    ended.set()
    sender = OtlpSender(url, 10.0, 20.0, said.append)
    begun_s = time.monotonic()
    try:
        asyncio.run(sender.send_until(feed, ended))
    finally:
        feed.close()
    return said, time.monotonic() - begun_s


ENDLESS_HEADS = [
    (b"HTTP/1.1 200 OK\r\n\r\n", None),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", None),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", None),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "400"),
    (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\n\r\n", "307"),
]


@pytest.mark.parametrize(("head", "status"), ENDLESS_HEADS)
def test_little_is_read_of_an_answer_without_end(tmp_path: Path, head: bytes, status: str | None) -> None:
    with answering(head, b"x" * 65536, 0.0) as (url, sizes):
        said, took_s = sent_of_a_run(tmp_path, url)
        until(lambda: sizes, "the collector's end")
    # Beyond what is read, the kernel's buffers took some megabytes.
    assert max(sizes) < 50_000_000
    assert took_s < 9.0
    assert bool(said) == (status is not None), said
    assert all(f"answers {status}" in line for line in said)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9999\r\n\r\n"])
def test_an_answer_that_drips_is_too_late(tmp_path: Path, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with answering(head, b"x", 0.1) as (url, _):
        said, took_s = sent_of_a_run(tmp_path, url)
    assert took_s < 9.0
    first, last = said
    assert "in time;" in first
    assert "not sent" in last


def test_connections_are_kept_over_an_ordinary_answer() -> None:
    def handled(body: bytes) -> list[int]:
        ports: list[int] = []

        class Kept(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                ports.append(self.client_address[1])
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kept)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with BoundedSession() as session:
                for _ in range(3):
                    response = session.post(f"http://127.0.0.1:{server.server_address[1]}/", data=b"x", timeout=5.0)
                    assert (response.status_code, response.content) == (200, b"")
        finally:
            server.shutdown()
            server.server_close()
        return ports

    assert len(set(handled(b""))) == 1
    assert len(set(handled(b"x" * 1000))) == 1
    # Of what is longer, the rest is not read.
    assert len(set(handled(b"x" * (2 * MOST_BYTES)))) == 3


def is_complete(path: Path) -> bool:
    try:
        kept = recorded(path)
    except sqlite3.Error:
        return False
    return kept is not None and kept.complete


def test_what_cannot_be_sent_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str | None, dict[str, str], str]] = [
        ("127.0.0.1:4318", {}, "--otlp: it is not the URL of a collector"),
        ("grpc://127.0.0.1:4317", {}, "--otlp: it is not the URL"),
        (f"http://127.0.0.1:4318/?token={SECRET}", {}, "--otlp: the collector's URL has no '?'"),
        (None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "$OTEL_EXPORTER_OTLP_PROTOCOL: asyncli sends OTLP as http/protobuf alone"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{SECRET}@host"}, "$OTEL_EXPORTER_OTLP_ENDPOINT: it is not the URL"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f"a=b,{SECRET}"}, "$OTEL_EXPORTER_OTLP_HEADERS: header 2 is not NAME=VALUE"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}\\xff"}, "$OTEL_EXPORTER_OTLP_HEADERS: the value of header 1 has"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f'a=b,authorization="{SECRET}"'}, "$OTEL_EXPORTER_OTLP_HEADERS: the value of header 2 has"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}€"}, "$OTEL_EXPORTER_OTLP_HEADERS: the value of header 1 has"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}\udcff"}, "$OTEL_EXPORTER_OTLP_HEADERS: the value of header 1 has"),
        (None, {"OTEL_EXPORTER_OTLP_METRICS_HEADERS": f"authorization={SECRET}%0Ax"}, "$OTEL_EXPORTER_OTLP_METRICS_HEADERS: the value of"),
        (None, {"OTEL_EXPORTER_OTLP_HEADERS": f"a(b={SECRET}"}, "$OTEL_EXPORTER_OTLP_HEADERS: header 1 is not NAME=VALUE"),
        (f"http://u:{SECRET}@ho st:1", {}, "--otlp: it is not the URL"),
        (f"http://u:{SECRET}@h\n:1", {}, "--otlp: it is not the URL"),
        (None, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://u:{SECRET}@h\t:1/v1/metrics"}, "$OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: it is not the URL"),
        (None, {"OTEL_METRIC_EXPORT_INTERVAL": "10s"}, "$OTEL_METRIC_EXPORT_INTERVAL: write milliseconds"),
        (None, {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, "asyncli sends cumulative values alone"),
    ]
    for url, variables, complaint in cases:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            given = ["--otlp", url] if url is not None else ["--hold", "1s", "--otlp"]
            done = here(tmp_path, "soak", "http://127.0.0.1:9/", *given)
        assert (done.status, done.err.count("\n")) == (2, 1), done.err
        assert complaint in done.err
        assert SECRET not in done.err


def test_the_endpoint_is_that_of_the_variables_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def endpoint(given: str) -> str:
        place = otlp_options.otlp_place(given)
        assert place is not None
        return place.endpoint

    by_variables = otlp_options._BY_VARIABLES
    assert otlp_options.otlp_place(None) is None
    assert endpoint(by_variables) == "http://localhost:4318/v1/metrics"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector/base/")
    assert endpoint(by_variables) == "https://collector/base/v1/metrics"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://collector/as-it-is")
    assert endpoint(by_variables) == "https://collector/as-it-is"
    assert endpoint("http://other:4318") == "http://other:4318/v1/metrics"
    assert endpoint("http://other:4318/v1/metrics") == "http://other:4318/v1/metrics"
    # The variables alone send nothing.
    assert otlp_options.otlp_place(None) is None


def test_without_opentelemetry_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_options, "_NEEDED", ("no_such_module.at_all",))
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", "--otlp", "http://127.0.0.1:4318")
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "asyncli[otel]" in done.err


def test_a_password_in_the_url_is_not_shown() -> None:
    place = otlp_options.otlp_place(f"https://user:{SECRET}@collector:4318")
    assert place is not None
    line = otlp_options.otlp_line(place)
    assert "collector:4318" in line
    assert SECRET not in line
