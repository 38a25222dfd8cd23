"""The rows of a page that may count connections: few, of bounded names, and read cheaply."""

from __future__ import annotations

import re
import time
from pathlib import Path

import metrics_pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncli.collect.count_search import MOST_ROWS_OF_A_NAME, MOST_WATCHED, CountSearch
from asyncli.collect.metrics_page import NotMetricsPage, WantedNames, parse_metrics
from asyncli.model.metrics_map import mapped_metric
from asyncli.model.page_rows import LONGEST_ROW, row_name

RECORDED = Path(__file__).parents[1] / "pages"
GAUGE = 'myapp_ws_open{pool="a"}'


def watched_on(*texts: str) -> dict[str, float]:
    """The rows that are watched after whole pages, one a second, and their last values."""
    search = CountSearch()
    values: dict[str, float] = {}
    for second, text in enumerate(texts):
        page = parse_metrics(text.encode())
        search.take(page, float(second))
        values = search.values(page)
    return values


def gauge(row: str, value: float) -> str:
    name = row.partition("{")[0]
    return f"# TYPE {name} gauge\n{row} {value}\n"


def test_a_gauge_is_watched_from_the_first_page_on() -> None:
    assert watched_on(gauge(GAUGE, 1)) == {GAUGE: 1}
    assert watched_on(gauge(GAUGE, 1), gauge(GAUGE, 60)) == {GAUGE: 60}


def test_a_row_that_comes_with_the_first_connection_began_at_zero() -> None:
    other = gauge("queue", 3)
    assert watched_on(other, other + gauge(GAUGE, 30)) == {GAUGE: 30}


def test_what_does_not_change_is_left_out_once_a_row_has_risen() -> None:
    first = gauge(GAUGE, 0) + gauge("replicas", 3) + gauge("queue", 3)
    assert set(watched_on(first)) == {GAUGE, "replicas", "queue"}
    assert set(watched_on(first, gauge(GAUGE, 5) + gauge("replicas", 3) + gauge("queue", 4))) == {GAUGE, "replicas", "queue"}
    assert set(watched_on(first, gauge(GAUGE, 50) + gauge("replicas", 3) + gauge("queue", 4))) == {GAUGE, "queue"}


def test_a_row_that_has_fallen_again_is_still_watched() -> None:
    risen = [gauge(GAUGE, 0), gauge(GAUGE, 100), gauge(GAUGE, 0)]
    others = [gauge("queue", 1), gauge("queue", 30), gauge("queue", 31)]
    assert watched_on(*map("".join, zip(risen, others, strict=True))) == {GAUGE: 0, "queue": 31}


def test_memory_that_rises_does_not_end_the_search() -> None:
    """Envoy's memory_allocated has no unit in its name, and rises before the first connect."""
    pages = [gauge(GAUGE, 0) + gauge("memory_allocated", 6_000_000 + 4096 * second) for second in range(5)]
    search = CountSearch()
    for second, text in enumerate(pages):
        search.take(parse_metrics(text.encode()), float(second))
        search.rest(float(second), 0.001)
        assert GAUGE in search.values(parse_metrics(text.encode()))
    assert search.is_due(5.0)


def test_one_slow_reading_is_no_long_rest() -> None:
    search = CountSearch()
    page = parse_metrics(gauge(GAUGE, 0).encode())
    now_s = 0.0
    for took_s in (0.04, 0.002, 0.002, 0.04, 0.002):
        assert search.is_due(now_s)
        search.take(page, now_s)
        search.rest(now_s, took_s)
        now_s += 2.0
    for _ in range(3):
        search.rest(now_s, 0.04)
    assert not search.is_due(now_s + 19.0)
    assert search.is_due(now_s + 20.0)


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE a counter\na 1\n",
        "# TYPE a histogram\na_count 1\na_sum 1\n",
        "# TYPE heap_bytes gauge\nheap_bytes 1\n",
        "# TYPE last_scrape_seconds gauge\nlast_scrape_seconds 1\n",
        "hit_ratio 1\nconnections_total 1\nbuild_timestamp 1\n",
        "go_goroutines 1\nprocess_open_fds 1\njvm_threads_live_threads 1\n",
        '{"memBytes": 1, "uptimeSeconds": 1, "stats": {"totalConnections": 1}}',
        "ws_open 1.5\nws_held -1\nws_idle NaN\nws_busy 1e300\nws_all +Inf\n",
        'ws_open 1\nws_open{pool="a"} 1\n'.replace('{pool="a"}', ""),
        'ws{p="a\\"b"} 1\nws{p="\\\\"} 1\n',
        'ws{p="' + "x" * LONGEST_ROW + '"} 1\n',
        'ws{p="\x1b[31m"} 1\n',
        '{"open sockets": 1, "a{": 1}',
    ],
    ids=range(13),
)
def test_what_counts_no_connections_is_not_watched(text: str) -> None:
    assert watched_on(text) == {}


def test_words_within_words_say_nothing() -> None:
    names = ["operations", "iterations", "timers", "fdsomething"]
    assert set(watched_on("".join(f"{name} 1\n" for name in names))) == set(names)


def test_numbers_of_json_are_watched() -> None:
    first, second = '{"ws":{"openNow":3},"name":"x"}', '{"ws":{"openNow":90},"name":"x"}'
    assert watched_on(first, second) == {"ws.openNow": 90}


def test_the_rows_that_rose_most_are_watched_those_that_speak_of_connections_first() -> None:
    others = [f"queue_{number}" for number in range(100)]
    first = "".join(f"{name} 0\n" for name in [*others, "ws_open"])
    second = "".join(f"{name} {100 + number}\n" for number, name in enumerate(others)) + "ws_open 7\n"
    watched = watched_on(first, second)
    assert set(watched) == {"ws_open", *others[-(MOST_WATCHED - 1) :]}


def test_a_name_with_a_row_for_each_client_is_none() -> None:
    def page(rows: int, value: int) -> str:
        return "".join(f'client_open{{id="{number}"}} {value}\n' for number in range(rows))

    assert len(watched_on(page(MOST_ROWS_OF_A_NAME, 1))) == MOST_WATCHED
    assert watched_on(page(MOST_ROWS_OF_A_NAME + 1, 1)) == {}
    search = CountSearch()
    search.take(parse_metrics(page(3, 1).encode()), 0.0)
    assert len(search.values(parse_metrics(page(3, 2).encode()))) == 3
    assert search.values(parse_metrics(page(MOST_ROWS_OF_A_NAME + 1, 2).encode())) == {}
    assert search.names == frozenset()


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.txt")), ids=lambda path: path.stem)
def test_what_is_watched_of_recorded_pages_can_be_mapped(path: Path) -> None:
    for row in watched_on(path.read_text(encoding="utf-8")):
        metric = mapped_metric(f"active={row}")
        assert row_name(metric.name, metric.labels) == row


def reading_cpu_s(before: bytes, after: bytes, seconds: int) -> tuple[float, int]:
    """CPU time of reading a page a second, and how many of them were read whole; the second page from the tenth second on."""
    search = CountSearch()
    wanted = WantedNames(["go_memstats_heap_alloc_bytes"])
    table = wanted.names
    whole = 0
    begun_s = time.thread_time()
    for second in range(seconds):
        body = before if second < 10 else after
        if search.is_due(second):
            whole += 1
            started_s = time.thread_time()
            page = parse_metrics(body)
            search.take(page, second)
            wanted = WantedNames(table | search.names)
            search.rest(second, time.thread_time() - started_s)
        else:
            page = wanted.parse(body)
        search.values(page)
    return time.thread_time() - begun_s, whole


def series_10k(value: int) -> bytes:
    rows = [f'shard_{number // 40}_open{{shard="{number % 40}"}} {value}' for number in range(10_000)]
    return "\n".join(rows).encode()


def test_a_page_of_ten_thousand_series_takes_less_than_a_hundredth_of_a_core() -> None:
    cpu_s, _ = reading_cpu_s(series_10k(0), series_10k(30), 120)
    assert cpu_s < 1.2


def test_a_small_page_is_read_whole_until_a_row_has_risen_and_then_at_each_doubling() -> None:
    before = metrics_pages.GO + gauge(GAUGE, 0)
    after = metrics_pages.GO + gauge(GAUGE, 100)
    _, whole = reading_cpu_s(before.encode(), after.encode(), 600)
    assert 10 <= whole <= 30


PIECES = st.sampled_from(["a", "ws_open", "{", "}", '"', "\\", "=", ",", " ", "\n", "1", "2", "-1", "1e300", "NaN", "# TYPE a gauge\n", 'x="y"', "\x00", "²", "\x1b", "[", ":", '{"a": 1}'])
BODIES = st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode())


@given(st.lists(BODIES, max_size=4))
def test_any_pages_give_few_rows_that_can_be_mapped(bodies: list[bytes]) -> None:
    search = CountSearch()
    for second, body in enumerate(bodies):
        try:
            page = parse_metrics(body)
        except NotMetricsPage:
            continue
        search.take(page, float(second))
        rows = search.values(page)
        assert len(rows) <= MOST_WATCHED
        for row, value in rows.items():
            assert row.isprintable()
            assert len(row) <= LONGEST_ROW
            assert value.is_integer()
            metric = mapped_metric(f"active={row}")
            assert re.match(re.escape(metric.name), row)


def test_memory_is_bounded_by_the_first_page() -> None:
    search = CountSearch()
    search.take(parse_metrics("".join(f"open_{number} 1\n" for number in range(30_000)).encode()), 0.0)
    assert len(search._first or {}) == 20_000
    # What is not known of the first page is no candidate.
    page = parse_metrics(b"later_open 90\nopen_1 1\nopen_29999 90\n")
    search.take(page, 1.0)
    assert "later_open" not in search.values(page)
