"""Pages of metrics as real servers wrote them, and pages that no server should write."""

from __future__ import annotations

import math
import time

import metrics_pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.metrics_page import UNTYPED, NotMetricsPage, Row, WantedNames, parse_metrics

TEXTS = ("NODE", "GO", "OPENMETRICS", "CADDY", "HAPROXY", "NGINX_EXPORTER")
#: The greatest page that is read.
A_MIB = 1 << 20


def rows_of(text: str, name: str = "a") -> list[Row]:
    return parse_metrics(text.encode()).families[name].rows


def number(page: str, name: str) -> float:
    (row,) = parse_metrics(page.encode()).families[name].rows
    return row.value


@pytest.mark.parametrize(
    ("page", "name", "value"),
    [
        ("GO", "go_memstats_heap_alloc_bytes", 582496),
        ("GO", "go_memstats_last_gc_time_seconds", 1.795893576330953e09),
        ("GO", "go_gc_heap_live_bytes", 461648),
        ("OPENMETRICS", "go_gc_cycles_total_gc_cycles_total", 1),
        ("CADDY", "caddy_http_requests_total", 3),
        ("HAPROXY", "haproxy_process_pool_allocated_bytes", 123832),
        ("NGINX_EXPORTER", "nginx_http_requests_total", 3),
        ("NATS", "mem", 12029952),
        ("NATS", "http_req_stats./varz", 2),
        ("EXPVAR", "memstats.HeapAlloc", 1050920),
        ("EXPVAR", "memstats.NumGC", 1),
    ],
)
def test_values_of_real_pages(page: str, name: str, value: float) -> None:
    text = getattr(metrics_pages, page)
    assert number(text, name) == value
    (row,) = WantedNames([name, "absent"]).parse(text.encode()).families[name].rows
    assert row.value == value


@pytest.mark.parametrize("page", TEXTS)
def test_the_wanted_names_are_read_as_the_whole_page_is(page: str) -> None:
    body = getattr(metrics_pages, page).encode()
    everything = parse_metrics(body).families
    wanted = WantedNames(everything).parse(body).families
    assert str({name: family.rows for name, family in wanted.items()}) == str({name: family.rows for name, family in everything.items()})


def test_kinds_are_those_of_the_family() -> None:
    families = parse_metrics(metrics_pages.OPENMETRICS.encode()).families
    assert families["go_gc_cycles_total_gc_cycles_total"].kind == "counter"
    assert families["process_open_fds"].kind == "gauge"
    assert parse_metrics(b"a 1\n").families["a"].kind == UNTYPED


def test_labels_tell_rows_apart() -> None:
    rows = rows_of(metrics_pages.HAPROXY, "haproxy_frontend_current_sessions")
    assert rows == [Row({"proxy": "web"}, 0.0), Row({"proxy": "prom"}, 1.0)]


def test_escaped_quotes_commas_braces_and_newlines_in_labels() -> None:
    text = r'a{p="/c{\"x\"}, }", q="f\n\\g" , r="\d",} 1'
    assert rows_of(text) == [Row({"p": '/c{"x"}, }', "q": "f\n\\g", "r": "\\d"}, 1.0)]
    rows = rows_of(metrics_pages.GO, "http_request_duration_seconds_count")
    assert [row.labels["p"] for row in rows] == ["/a", "/b", '/c{"x"}', "/d,e", "/f\n\\g"]


def test_values_with_timestamps_are_of_another_instant_and_left_out() -> None:
    text = 'b 1 1795893576330\na{x="1"}\t2 1795893576.3 # {trace="{}"} 0.5 1795893576\r\na {} 3 # {t="1"} 0.5 17\r\n  a 4\na 5 -1\na 6 x'
    assert [row.value for row in rows_of(text)] == [3, 4, 6]
    for page in (parse_metrics(text.encode()), WantedNames({"a", "b"}).parse(text.encode())):
        assert (page.families.keys(), page.stamped) == ({"a"}, {"a", "b"})
    # Of values that are all of another instant it is still a page of metrics.
    assert parse_metrics(b"b 1 1795893576330\n").stamped == {"b"}


def test_values_that_are_no_numbers_of_bytes_are_told_as_they_are() -> None:
    values = [row.value for row in rows_of("a NaN\na Nan\na +Inf\na -Inf\na -1\na 1e300\na 1.8446744073709552e+19\n")]
    assert math.isnan(values[0])
    assert math.isnan(values[1])
    assert values[2:] == [math.inf, -math.inf, -1.0, 1e300, 2.0**64]


@pytest.mark.parametrize(
    "broken",
    ['a{x="1} 2', "a{x=1} 2", 'a{x="1"y="2"} 2', 'a{="1"} 2', "a", "a ", "a one", "a 1_0", "a 0x1", "a 1;", 'a{x="1"}}', "a{{}} 1", "a" + " 1" * 0, "1a 2", 'a{x="\n"} 2', "a " + "1" * 41],
)
def test_broken_lines_are_skipped(broken: str) -> None:
    page = parse_metrics(f"{broken}\nb 1\n{broken}".encode())
    assert {name: family.rows for name, family in page.families.items()} == {"b": [Row({}, 1.0)]}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"<!DOCTYPE html><html>a 1\n", "is a page of HTML or XML"),
        (b"\n<html>", "is a page of HTML or XML"),
        (b"# TYPE a gauge\n", "has no line with a metric and its value"),
        (b"\x0a\x10\x00\xff", "has no line with a metric and its value"),
        (b'{"a": "1", "b": [1, 2], "c": true, "d": null}', "is JSON without a number by name"),
        (b'{"a": 1', "is no valid JSON"),
        (b'{"a":' * 2000, "is no valid JSON"),
    ],
)
def test_what_is_no_page_of_metrics_says_what_it_is(body: bytes, why: str) -> None:
    for parse in (parse_metrics, WantedNames(["a", "b"]).parse):
        with pytest.raises(NotMetricsPage) as refused:
            parse(body)
        assert str(refused.value).startswith(why)


def test_a_page_without_a_wanted_name_is_a_page() -> None:
    assert WantedNames(["absent"]).parse(metrics_pages.GO.encode()).families == {}


def test_json_is_bounded_in_depth_and_in_the_length_of_names() -> None:
    nested = '{"a":' * 12 + "1" + "}" * 12
    families = parse_metrics(f'{{"x": 1, "{"k" * 101}": 2, "n": {nested}, "huge": 1{"0" * 400}}}'.encode()).families
    assert set(families) <= {"x", "huge"}


@pytest.mark.parametrize(
    "body",
    [
        b"a" * A_MIB,
        b"a{" * (A_MIB // 2),
        b'a{x="' + b"\\" * A_MIB,
        b"a{x=" + b'"' * A_MIB,
        b"a{" + b"x" * A_MIB + b"} 1",
        b"a{" + b'x="1",' * (A_MIB // 6) + b"} 1",
        b"\n" * A_MIB,
        b"a 1\n" * (A_MIB // 4),
        b"a " + b" " * A_MIB,
        b"a " + b"9" * A_MIB,
        b"# TYPE a" * (A_MIB // 8),
        b'{"a":' * (A_MIB // 5),
        b'{"a":' + b"1" * A_MIB + b"}",
        b"{" + b",".join(b'"%d":1' % key for key in range(A_MIB // 10)) + b"}",
    ],
    ids=range(14),
)
def test_hostile_pages_take_little_time(body: bytes) -> None:
    wanted = WantedNames(["a", "aa", "ab", "abc"])
    begun_s = time.process_time()
    for parse in (parse_metrics, wanted.parse):
        try:
            parse(body[:A_MIB])
        except NotMetricsPage as refused:
            assert len(str(refused)) < 200
    assert time.process_time() - begun_s < 2.0


PIECES = st.sampled_from(["a", "b_total", "{", "}", '"', "\\", "=", ",", " ", "\n", "\r\n", "1", "-1", "1e300", "NaN", "+Inf", "# TYPE a counter\n", 'x="y"', "\x00", "²", "<", "[", ":"])
BODIES = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode()))


@given(BODIES)
def test_any_bytes_are_a_page_or_refused(body: bytes) -> None:
    for parse in (parse_metrics, WantedNames(["a", "b_total"]).parse):
        try:
            page = parse(body)
        except NotMetricsPage as refused:
            assert str(refused).isprintable()
            continue
        for family in page.families.values():
            assert all(isinstance(row.value, float) for row in family.rows)
