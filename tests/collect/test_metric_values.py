"""What the pages of real servers say in metrics of ours, and what happens to counts over several pages."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path

import metrics_pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.metric_rules import COUNTS, PRODUCTS, Reading
from asyncli.collect.metric_values import PageValues, is_possible, joined, mapped_product
from asyncli.collect.metrics_page import NotMetricsPage, parse_metrics
from asyncli.collect.risen_row import Scrapes
from asyncli.model.metrics import METRICS
from asyncli.model.metrics_map import mapped_metric

FIRST = Scrapes(1, 1, 1)


def read(pages: PageValues, text: str, scrapes: Scrapes = FIRST) -> dict[str, float]:
    page = pages.wanted.parse(text.encode())
    pages.recognise(page)
    return {**pages.runtime(page), **pages.counts(page, pages.page_counts(page), scrapes)}


def values_of(text: str) -> tuple[list[str], dict[str, float]]:
    pages = PageValues()
    values = read(pages, text)
    return pages.products, values


@pytest.mark.parametrize(
    ("page", "products", "values"),
    [
        ("NODE", ["Node"], {"runtime.heap_bytes": 4936432, "runtime.collections": 1, "runtime.descriptors": 22, "status.active": 1}),
        (
            "GO",
            ["Go"],
            {
                "runtime.heap_bytes": 582496, "runtime.live_bytes": 461648, "runtime.collections": 1, "runtime.collected_at_s": 1795893576.330953,
                "runtime.stacks_bytes": 425984, "runtime.goal_bytes": 4194304, "runtime.own_bytes": 34240 + 4592 + 2148080 + 568207,
                "runtime.gogc_percent": 100, "runtime.descriptors": 11,
            },
        ),
        ("OPENMETRICS", ["Go"], None),
        # Its counter of requests has a row for each handler.
        ("CADDY", ["Caddy", "Go"], None),
        ("HAPROXY", ["HAProxy"], {"runtime.allocated_bytes": 123832, "status.active": 1, "status.accepts": 5, "status.requests": 5}),
        # The exporter's connection to nginx is one, ours to it is none of nginx's.
        ("NGINX_EXPORTER", ["nginx-prometheus-exporter"], {"status.active": 1, "status.accepts": 2, "status.handled": 2, "status.requests": 3}),
        ("NATS", ["NATS"], {"status.active": 1, "status.accepts": 1}),
        (
            "EXPVAR",
            ["Go expvar"],
            {
                "runtime.heap_bytes": 1050920, "runtime.collections": 1, "runtime.collected_at_s": pytest.approx(1795893576.330953),
                "runtime.stacks_bytes": 425984, "runtime.goal_bytes": 4194304, "runtime.own_bytes": 34240 + 4592 + 2241264 + 475023,
            },
        ),
    ],
)  # fmt: skip
def test_real_pages(page: str, products: list[str], values: dict[str, float] | None) -> None:
    recognised, read_values = values_of(getattr(metrics_pages, page))
    assert recognised == products
    if values is not None:
        assert read_values == values


def test_caddy_has_counts_of_its_own_and_the_runtime_of_go() -> None:
    text = metrics_pages.CADDY + 'caddy_http_requests_total{handler="encode",server="srv0"} 2\n'
    _, values = values_of(text)
    assert values["status.requests"] == 3 + 1
    assert values["runtime.heap_bytes"] == 2648960
    assert values["runtime.collections"] == 2
    assert "status.active" not in values


def test_the_first_product_that_counts_connections_gives_the_counts() -> None:
    products, values = values_of(metrics_pages.NODE + metrics_pages.HAPROXY + metrics_pages.GO)
    assert products == ["HAProxy", "Node", "Go"]
    assert values["status.accepts"] == 5
    assert values["runtime.heap_bytes"] == 4936432


def test_the_runtime_of_an_exporter_is_not_the_servers() -> None:
    _, values = values_of(metrics_pages.NGINX_EXPORTER + metrics_pages.GO)
    assert not any(name.startswith("runtime.") for name in values)


@pytest.mark.parametrize(
    ("text", "active_by", "descriptors_by"),
    [
        (metrics_pages.NODE, "nodejs_active_resources", "process_open_fds"),
        (metrics_pages.CADDY, None, "process_open_fds"),
        (metrics_pages.EXPVAR, None, None),
        # Its own descriptors are not the server's.
        (metrics_pages.NGINX_EXPORTER + metrics_pages.GO, "nginx_connections_active", None),
    ],
    ids=["node", "caddy", "expvar", "exporter"],
)
def test_what_counts_connections_and_descriptors_is_named(text: str, active_by: str | None, descriptors_by: str | None) -> None:
    pages = PageValues()
    read(pages, text)
    source = pages.source_at("http://127.0.0.1/", 1.0)
    assert (source.active_by, source.descriptors_by) == (active_by, descriptors_by)


def test_every_rule_names_a_metric_of_ours_and_one_count_once() -> None:
    for product in PRODUCTS:
        counts = [reading.metric for reading in product.readings if reading.metric in COUNTS]
        assert len(counts) == len(set(counts)), product.name
        for reading in product.readings:
            assert reading.metric in METRICS
            assert reading.names


def test_each_product_is_recognised_by_a_name_of_its_own() -> None:
    names = [name for product in PRODUCTS for name in product.recognised_by]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("text", ["NaN", "Nan", "+Inf", "-Inf", "-1", "1e300", "1.8446744073709552e+19", "9.223372036854776e+18"])
def test_nonsense_is_no_value(text: str) -> None:
    _, values = values_of(metrics_pages.GO + f"go_memstats_next_gc_bytes {text}\ngo_gc_gomemlimit_bytes {text}\n")
    assert "runtime.goal_bytes" not in values
    assert "runtime.limit_bytes" not in values
    assert "runtime.heap_bytes" in values


def test_zero_is_no_size_of_live_data_and_no_instant() -> None:
    assert not is_possible("runtime.live_bytes", 0.0)
    assert not is_possible("runtime.collected_at_s", 0.0)
    assert is_possible("runtime.collections", 0.0)


def test_pools_without_a_limit_are_left_out_of_the_sum() -> None:
    text = 'jvm_memory_max_bytes{area="heap",id="Eden"} -1\njvm_memory_max_bytes{area="heap",id="Old"} 256\njvm_memory_max_bytes{area="nonheap",id="x"} 9\n'
    reading = Reading("runtime.limit_bytes", ("jvm_memory_max_bytes",), where={"area": ("heap",)}, undefined=-1.0)
    assert joined(parse_metrics(text.encode()), reading) == 256
    assert joined(parse_metrics(b'jvm_memory_max_bytes{area="heap"} -1\n'), reading) is None


def test_a_sum_that_lacks_a_part_is_no_value() -> None:
    reading = Reading("runtime.own_bytes", ("a", "b"))
    assert joined(parse_metrics(b"a 1\n"), reading) is None
    assert joined(parse_metrics(b"a 1\nb 2\n"), reading) == 3


def test_a_row_that_a_page_has_twice_counts_once() -> None:
    """A sum of both would divide a wrong number."""
    _, once = values_of(metrics_pages.HAPROXY)
    _, twice = values_of(metrics_pages.HAPROXY + metrics_pages.HAPROXY)
    assert once == twice
    reading = Reading("runtime.own_bytes", ("b",))
    rows = b'b{id="x"} 1\nb{id="y"} 2\nb{id="x"} 1\n'
    assert joined(parse_metrics(rows), reading) == 3


def test_a_row_with_two_values_has_none() -> None:
    reading = Reading("runtime.own_bytes", ("b",))
    for second in ("7", "NaN"):
        rows = f'b{{id="x"}} 1\nb{{id="y"}} 2\nb{{id="x"}} {second}\nb{{id="x"}} 1\n'
        assert joined(parse_metrics(rows.encode()), reading) is None


def test_a_metric_keeps_the_reading_of_its_first_value() -> None:
    """Another counter would be a wrong number."""
    pages = PageValues()
    assert read(pages, metrics_pages.GO)["runtime.collections"] == 1
    without = metrics_pages.GO.replace("go_gc_cycles_total_gc_cycles_total 1", "")
    assert "runtime.collections" not in read(pages, without)
    assert read(pages, metrics_pages.GO)["runtime.collections"] == 1


def test_counts_without_our_scrapes_get_them_since_the_servers_start() -> None:
    pages = PageValues()
    text = 'envoy_http_downstream_cx_active{{envoy_http_conn_manager_prefix="in"}} {}\nenvoy_http_downstream_cx_active{{envoy_http_conn_manager_prefix="admin"}} 7\n'
    text += 'envoy_http_downstream_cx_total{{envoy_http_conn_manager_prefix="in"}} {}\nenvoy_http_downstream_rq_total{{envoy_http_conn_manager_prefix="in"}} {}\n'
    assert read(pages, text.format(0, 100, 200), Scrapes(1, 1, 1)) == {"status.active": 1, "status.accepts": 101, "status.requests": 201}
    assert read(pages, text.format(9, 109, 250), Scrapes(2, 5, 5)) == {"status.active": 10, "status.accepts": 111, "status.requests": 255}
    # It restarted: our connection was opened again, and one request came since.
    assert read(pages, text.format(2, 2, 3), Scrapes(3, 6, 6)) == {"status.active": 3, "status.accepts": 3, "status.requests": 4}
    assert read(pages, text.format(2, 2, 3), Scrapes(3, 7, 7)) == {"status.active": 3, "status.accepts": 3, "status.requests": 5}


NAMES = st.sampled_from(sorted(PageValues().wanted.names))
NUMBERS = st.sampled_from(["0", "1", "5", "NaN", "-1", "+Inf", "1e300", "1e15", "1e308"])
LABELS = st.sampled_from(["", '{proxy="a"}', '{proxy="b"}', '{area="heap"}', '{type="TCPSocketWrap"}', '{space="old"}', '{state="active"}'])
LINES = st.lists(st.tuples(NAMES, LABELS, NUMBERS).map(lambda parts: f"{parts[0]}{parts[1]} {parts[2]}"), min_size=1, max_size=12)


@given(st.lists(LINES, min_size=1, max_size=4))
def test_no_page_gives_an_impossible_value(texts: list[list[str]]) -> None:
    pages = PageValues()
    for number, lines in enumerate(texts, start=1):
        # JSON's names are none of Prometheus: such a line is skipped, or all are.
        with contextlib.suppress(NotMetricsPage):
            values = read(pages, "\n".join(lines), Scrapes(1, number, number))
            assert all(math.isfinite(value) and value >= 0 for value in values.values())
            assert values.keys() <= METRICS.keys()


class Haproxy:
    """Pages with the frontends web, other, and prom: (sessions, connections, requests)."""

    def __init__(self) -> None:
        self.pages = PageValues()

    def read(self, scrapes: Iterable[int], **frontends: tuple[int, int, int]) -> tuple[float, ...]:
        lines = []
        for place, name in enumerate(("current_sessions", "connections_total", "http_requests_total")):
            lines += [f'haproxy_frontend_{name}{{proxy="{proxy}"}} {counts[place]}' for proxy, counts in frontends.items()]
        values = read(self.pages, "\n".join(lines), Scrapes(*map(float, scrapes)))
        return values["status.active"], values["status.accepts"], values["status.requests"]


def test_the_frontend_that_rises_is_counted_and_others_stay_as_they_were() -> None:
    haproxy = Haproxy()
    assert haproxy.read((1, 1, 1), web=(0, 10, 20), other=(4, 50, 60), prom=(1, 3, 3)) == (5, 63, 83)
    assert haproxy.read((1, 2, 2), web=(0, 10, 20), other=(9, 55, 70), prom=(1, 3, 4)) == (10, 68, 94)
    # Now web has risen more.
    assert haproxy.read((1, 3, 3), web=(200, 210, 220), other=(30, 99, 99), prom=(1, 3, 5)) == (205, 263, 285)
    assert haproxy.read((2, 4, 4), web=(200, 210, 420), other=(0, 99, 999), prom=(1, 4, 6)) == (205, 264, 486)


def test_a_frontend_that_also_serves_the_page_counts_our_scrapes_itself() -> None:
    haproxy = Haproxy()
    assert haproxy.read((1, 1, 1), web=(1, 5, 9), other=(0, 7, 7)) == (1, 12, 16)
    assert haproxy.read((1, 2, 2), web=(1, 5, 10), other=(0, 7, 7)) == (1, 12, 17)
    assert haproxy.read((1, 3, 3), web=(201, 205, 211), other=(0, 7, 7)) == (201, 212, 218)


def test_haproxy_that_restarts_counts_from_zero() -> None:
    haproxy = Haproxy()
    haproxy.read((1, 1, 1), web=(0, 10, 20), prom=(1, 3, 3))
    haproxy.read((1, 2, 2), web=(0, 10, 20), prom=(1, 3, 4))
    assert haproxy.read((1, 3, 3), web=(200, 210, 220), prom=(1, 3, 5)) == (201, 213, 225)
    assert haproxy.read((2, 4, 4), web=(50, 50, 60), prom=(1, 1, 1)) == (51, 51, 61)
    assert haproxy.read((2, 5, 5), web=(60, 60, 70), prom=(1, 1, 2)) == (61, 61, 72)


def test_requests_are_unknown_while_a_frontend_has_none() -> None:
    """A frontend in mode tcp may be the one with our connections."""
    text = metrics_pages.HAPROXY.replace('haproxy_frontend_http_requests_total{proxy="web"} 3\n', "")
    _, values = values_of(text)
    assert values["status.accepts"] == 5
    assert "status.requests" not in values


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ((Path(metrics_pages.__file__).parent / "pages/node-http.txt").read_text(), 2_067_813),
        ((Path(metrics_pages.__file__).parent / "pages/jvm.txt").read_text(), 16_785_416),
        ('jvm_memory_pool_collection_used_bytes{pool="x"} 1\njvm_buffer_pool_used_bytes{pool="direct"} 7\njvm_buffer_pool_used_bytes{pool="mapped"} 9\n', 7),
        (
            'jvm_memory_used_after_last_gc_bytes{jvm_memory_type="heap"} 1\njvm_buffer_memory_used_bytes{jvm_buffer_pool_name="direct"} 7\n'
            'jvm_buffer_memory_used_bytes{jvm_buffer_pool_name="mapped"} 9\n',
            7,
        ),
    ],
    ids=["node", "micrometer", "client_java", "opentelemetry"],
)
def test_what_objects_hold_outside_the_heap_is_read(text: str, outside: float) -> None:
    """Buffers, and none of the JVM's mapped files."""
    assert values_of(text)[1]["runtime.outside_bytes"] == outside


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ((Path(metrics_pages.__file__).parent / "pages/jvm.txt").read_text(), None),
        (
            (Path(metrics_pages.__file__).parent / "pages/jvm.txt").read_text().replace('_max_bytes{area="heap",id="G1 Old Gen"}', '_max_bytes{area="heap",id="Tenured Gen"}'),
            257_949_696,
        ),
        ('jvm_memory_pool_collection_used_bytes{pool="x"} 1\njvm_memory_pool_max_bytes{pool="PS Old Gen"} 7\njvm_memory_pool_max_bytes{pool="PS Eden Space"} 9\n', 7),
        ('jvm_memory_pool_collection_used_bytes{pool="x"} 1\njvm_memory_pool_max_bytes{pool="PS Old Gen"} -1\n', None),
    ],
    ids=["g1", "serial", "client_java", "no limit"],
)  # fmt: skip
def test_the_old_generation_has_a_limit_where_the_page_names_one(text: str, old: float | None) -> None:
    assert values_of(text)[1].get("runtime.old_limit_bytes") == old


def test_nothing_is_added_to_what_a_user_says_is_alive() -> None:
    pages = PageValues(mapped_product([mapped_metric("live=nodejs_external_memory_bytes")]))
    page = parse_metrics(metrics_pages.NODE.encode() + b"nodejs_external_memory_bytes 2067813\n")
    pages.recognise(page)
    values = pages.runtime(page)
    assert values["runtime.live_bytes"] == 2_067_813
    assert "runtime.outside_bytes" not in values
    assert pages.source_at("http://x/", 1.0).alive_by == "nodejs_external_memory_bytes"


def test_a_named_metric_may_have_labels_with_quotes() -> None:
    """They are escaped as on the page."""
    written = r'conns{path="a\"b\\c\nd",pool="x"}'
    assert mapped_metric(f"active={written}").labels == {"path": 'a"b\\c\nd', "pool": "x"}
    page = parse_metrics(f'conns{{path="other",pool="x"}} 9\n{written} 5\n'.encode())
    pages = PageValues(mapped_product([mapped_metric(f"active={written}")]))
    pages.recognise(page)
    assert pages.page_counts(page)["status.active"] == 5


def test_a_named_metric_that_is_no_number_is_told_with_its_value() -> None:
    named = [mapped_metric(text) for text in ("active=my_conns", "live=my_live", "heap=my_heap", "requests=my_requests")]
    pages = PageValues(mapped_product(named))
    pages.recognise(parse_metrics(b"my_conns NaN\nmy_live 1e300\nmy_heap -5\nmy_requests 3\n"))
    assert pages.source_at("http://x/", 1.0).unusable == ("my_conns=NaN", "my_live=1e+300", "my_heap=-5")
    pages.recognise(parse_metrics(b"my_conns 1\nmy_live 1\nmy_heap 5\nmy_requests 3\n"))
    assert pages.source_at("http://x/", 1.0).unusable == ()
