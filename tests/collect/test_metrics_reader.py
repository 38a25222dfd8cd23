"""Reading pages of metrics: on one connection, bounded in time and size; what is wrong with a page is said in one line."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import metrics_pages
import pytest
from programs import serving, speaking

from asyncli.collect import metrics_reader
from asyncli.collect.metric_values import mapped_product
from asyncli.collect.metrics_reader import MetricsPages, MetricsReader
from asyncli.model.errors import PeerError
from asyncli.model.metrics_map import mapped_metric

GO = metrics_pages.GO
ENVOY = 'envoy_http_downstream_cx_active{{envoy_http_conn_manager_prefix="in"}} {}\nenvoy_http_downstream_cx_total{{envoy_http_conn_manager_prefix="in"}} {}\n'


def page(text: str | bytes, status: str = "200 OK", more: str = "") -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


async def refusal(url: str) -> str:
    reader = MetricsReader(url)
    try:
        with pytest.raises(PeerError) as caught:
            await reader.read()
    finally:
        await reader.close()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400
    return message


async def test_pages_share_one_connection_and_are_counted() -> None:
    with serving(answer=lambda number: page(ENVOY.format(number, 10 * number))) as server:
        reader = MetricsReader(server.url)
        try:
            first = await reader.read()
            second = await reader.read()
        finally:
            await reader.close()
    assert server.accepts == 1
    own = {"status.connects": 1, "status.unanswered": 0}
    assert first == {"status.active": 2, "status.accepts": 11, "status.polls": 1, **own}
    assert second == {"status.active": 3, "status.accepts": 21, "status.polls": 2, **own}
    assert reader.source.products == ("Envoy",)
    assert reader.source.active_by == "envoy_http_downstream_cx_active"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page("<html>" + "x" * 5000), "is a page of HTML or XML"),
        (page(""), "is empty"),
        (page("{"), "is no valid JSON"),
        (page("no such page", "404 Not Found"), "answered 404 Not Found"),
        (page("", "401 Unauthorized"), "--status-header"),
        (page("", "302 Found", "Location: http://h/other?token=1\r\n"), 'is redirected (302 Found) to "http://h/other?***"; write the URL of the page itself'),
        (page("", "304 Not Modified"), "answered 304 Not Modified; aim"),
        (page("", "204 No Content"), "answered 204 No Content; aim"),
        (page("no", "403 Forbidden"), 'answered 403 Forbidden "no"; let this host and this login read the page'),
        (page("oops", "500 Internal Server Error"), 'answered 500 Internal Server Error "oops"; see the server\'s log'),
        (page("a 1\n" * 300_000), "is longer than 1 MiB"),
        (page("a 1\n"), "has no metric that asyncli knows; name one"),
        (page("# TYPE ws_connections gauge\nws_connections 1\n# TYPE b gauge\nb 2\n"), "--metrics-map active=NAME: ws_connections"),
    ],
    ids=range(13),
)
async def test_a_page_that_cannot_be_used_says_why(answer: bytes, said: str) -> None:
    with serving(answer=answer) as server:
        message = await refusal(server.url)
        assert message.startswith(f"metrics page {server.url}: ")
        assert said in message
        assert server.requests == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (metrics_pages.CADVISOR, "is of cAdvisor: the memory of whole cgroups"),
        # As Prometheus gives the metrics of others (/federate).
        ('go_memstats_heap_alloc_bytes{instance="a"} 5e6 1795906561290\ngo_goroutines 5 1795906561290\n', "with timestamps"),
    ],
)
async def test_memory_of_another_instant_is_refused(text: str, said: str) -> None:
    with serving(answer=page(text)) as server:
        refused = await refusal(server.url)
    assert said in refused
    assert "own process" in refused


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page(GO)[:-20], "cannot be read (its answer was cut off or damaged)"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "cannot be read (what it answers is not valid HTTP)"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", "cannot be read (what it answers is not valid HTTP)"),
    ],
    ids=["cut off", "no HTTP", "a head without an end"],
)
async def test_what_is_no_answer_of_http_is_told_without_its_bytes(answer: bytes, said: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    with speaking(speak) as at:
        assert said in await refusal(f"http://{at}/metrics")


@pytest.mark.parametrize("later", ["other 5\n", "envoy_http_downstream_cx_active NaN\n"], ids=["another page", "no value"])
async def test_a_page_that_loses_all_that_it_had_is_an_outage(later: str) -> None:
    with serving(answer=lambda number: page(ENVOY.format(number, number) if number == 1 else later)) as server:
        reader = MetricsReader(server.url)
        try:
            await reader.read()
            for _ in range(2):
                with pytest.raises(PeerError, match="usable value"):
                    await reader.read()
        finally:
            await reader.close()


async def test_a_page_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_reader, "TIMEOUT_S", 0.5)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"4\r\na 1\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    with speaking(trickle) as at:
        assert "end within" in await refusal(f"http://{at}/metrics")


async def test_gigabytes_are_cut_off() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"a 1\n" * 16_384)
            await writer.drain()

    with speaking(flood) as at:
        assert "1 MiB" in await refusal(f"http://{at}/metrics")


async def test_a_compressed_flood_is_cut_off() -> None:
    """We ask for no compression; a peer may send it all the same."""
    body = zlib.compress(b"a 1\n" * 5_000_000)
    with serving(answer=page(body, more="Content-Encoding: deflate\r\n")) as server:
        message = await refusal(server.url)
    assert "metrics page" in message


async def test_a_login_is_sent_and_not_shown() -> None:
    with serving(answer=page(GO)) as server:
        reader = MetricsReader(f"http://me:tiger-4711@127.0.0.1:{server.port}/metrics?key=abc", headers=["X-Token: t"])
        await reader.read()
        await reader.close()
    assert b"Authorization: Basic " in server.heard
    assert b"X-Token: t" in server.heard
    assert b"GET /metrics?key=abc " in server.heard
    assert "tiger" not in reader.url
    assert "abc" not in reader.source.url


async def test_a_metric_that_the_user_names_counts() -> None:
    text = GO + '# TYPE ws gauge\nws{pool="a"} 7\nws{pool="b"} 9\n'
    mapped = mapped_product([mapped_metric('active=ws{pool="a"}')])
    with serving(answer=page(text)) as server:
        reader = MetricsReader(server.url, mapped=mapped)
        values = await reader.read()
        await reader.close()
    assert values["status.active"] == 7 + 1
    assert values["runtime.heap_bytes"] == 582496
    assert reader.source.products == ("--metrics-map", "Go")


@pytest.mark.parametrize(("name", "similar"), [("go_memstats_heap_aloc_bytes", "'go_memstats_heap_alloc_bytes'?"), ("nope_nope", "")])
async def test_a_metric_that_no_page_has_is_refused_before_the_run(name: str, similar: str) -> None:
    mapped = mapped_product([mapped_metric(f"active={name}")])
    with serving(answer=page(GO)) as server:
        pages = MetricsPages([MetricsReader(server.url, mapped=mapped)], has_status_page=False)
        with pytest.raises(PeerError) as caught:
            await pages.open()
        await pages.close()
    message = str(caught.value)
    assert "--metrics-map" in message
    assert f"'{name}'" in message
    assert similar in message


async def test_a_metric_may_be_on_one_page_of_two() -> None:
    texts = iter([GO, "ws 1\n", GO, "ws 8\n"])
    mapped = mapped_product([mapped_metric("active=ws")])
    with serving(answer=lambda _: page(next(texts))) as server:
        pages = MetricsPages([MetricsReader(f"{server.url}{place}", mapped=mapped) for place in range(2)], has_status_page=False)
        try:
            await pages.open()
            _, second = [await poll(True) for poll in pages.polls.values()]
        finally:
            await pages.close()
    assert second.values["status.active"] == 8


@pytest.mark.parametrize(("first", "counted"), [(1, 51), (0, 52), (2, 52)], ids=["ours", "none", "another's"])
async def test_one_connection_on_the_first_page_of_a_mapped_metric_is_our_own(first: int, counted: int) -> None:
    values = iter([first, 51])
    with serving(answer=lambda _: page(f"ws {next(values)}\n")) as server:
        reader = MetricsReader(server.url, mapped=mapped_product([mapped_metric("active=ws")]))
        await reader.read()
        assert (await reader.read())["status.active"] == counted
        await reader.close()


ODD = '# TYPE ws gauge\nws{{pool="a"}} {}\n'


async def test_rows_that_may_count_connections_are_recorded_by_the_number_of_their_page() -> None:
    texts = iter([GO, ODD.format(0), GO, ODD.format(40), GO, ODD.format(41)])
    with serving(answer=lambda _: page(next(texts))) as server:
        readers = [MetricsReader(f"{server.url}{place}", searches=True) for place in range(2)]
        pages = MetricsPages(readers, has_status_page=False)
        try:
            await pages.open()
            first, second = [await poll(True) for poll in pages.polls.values()]
            third, fourth = [await poll(True) for poll in pages.polls.values()]
        finally:
            await pages.close()
    assert [second.values, fourth.values] == [{'page.2.ws{pool="a"}': 40}, {'page.2.ws{pool="a"}': 41}]
    assert first.values["runtime.heap_bytes"] == third.values["runtime.heap_bytes"] == 582496
    assert readers[1].source.products == ()


async def test_no_row_is_recorded_where_a_rule_names_the_metric() -> None:
    texts = iter([ODD.format(0), ENVOY.format(1, 1), ODD.format(40), ENVOY.format(41, 41) + ODD.format(40)])
    with serving(answer=lambda _: page(next(texts))) as server:
        readers = [MetricsReader(f"{server.url}{place}", searches=True) for place in range(2)]
        pages = MetricsPages(readers, has_status_page=False)
        try:
            await pages.open()
            first, second = [await poll(True) for poll in pages.polls.values()]
        finally:
            await pages.close()
    assert (first.values, second.values["status.active"]) == ({}, 42)
    assert not any(name.startswith("page.") for name in second.values)


async def test_a_page_without_a_row_that_may_count_connections_is_refused() -> None:
    with serving(answer=page("# TYPE a counter\na 1\n")) as server:
        reader = MetricsReader(server.url, searches=True)
        with pytest.raises(PeerError, match="has no metric that asyncli knows"):
            await reader.read()
        await reader.close()


async def test_a_restarted_server_counts_from_zero() -> None:
    pages = [ENVOY.format(5, 100), ENVOY.format(0, 2), ENVOY.format(1, 3)]
    with serving(answer=lambda number: page(pages[number - 1])) as server:
        reader = MetricsReader(server.url)
        accepts = [(await reader.read())["status.accepts"] for _ in pages]
        await reader.close()
    assert accepts == [101, 2, 3]


async def test_impossible_counts_are_not_used() -> None:
    pages = [ENVOY.format(5, 100), ENVOY.format(2_000_000, 100), ENVOY.format(6, 101)]
    with serving(answer=lambda number: page(pages[number - 1])) as server:
        reader = MetricsReader(server.url)
        await reader.read()
        with pytest.raises(PeerError, match="impossible counts"):
            await reader.read()
        values = await reader.read()
        await reader.close()
    assert values["status.accepts"] == 102


async def read_all(texts: Sequence[str], *, has_status_page: bool = False) -> list[dict[str, float]]:
    """What each of several URLs gives at its second reading."""
    readings = []
    answers = iter([*texts, *texts])
    with serving(answer=lambda _: page(next(answers))) as server:
        readers = [MetricsReader(f"{server.url}{place}") for place in range(len(texts))]
        pages = MetricsPages(readers, has_status_page=has_status_page)
        try:
            await pages.open()
            for poll in pages.polls.values():
                readings.append((await poll(True)).values)
        finally:
            await pages.close()
    return readings


async def test_counts_and_memory_are_of_one_page() -> None:
    """What a second process has allocated is nothing that the first one's connections cost."""
    first, second = await read_all([metrics_pages.HAPROXY, metrics_pages.NODE + ENVOY.format(1, 1)])
    assert (first["status.active"], first["runtime.allocated_bytes"], first["runtime.connections"]) == (1, 123832, 1)
    assert second == {}


async def test_a_page_that_counts_no_connections_leaves_that_to_a_later_one() -> None:
    """Caddy counts requests alone."""
    first, second = await read_all([metrics_pages.CADDY, ENVOY.format(5, 6) + "envoy_server_memory_allocated{} 4000\n"])
    assert first == {}
    assert (second["status.active"], second["runtime.allocated_bytes"]) == (6, 4000)


async def test_memory_is_of_a_later_page_where_another_process_writes_the_first() -> None:
    first, second = await read_all([metrics_pages.NGINX_EXPORTER, metrics_pages.NODE])
    assert first["status.active"] == 1
    assert second == {"runtime.heap_bytes": 4936432, "runtime.collections": 1, "runtime.descriptors": 22}


async def test_the_counts_of_a_status_page_win() -> None:
    (values,) = await read_all([metrics_pages.HAPROXY], has_status_page=True)
    assert values == {"runtime.allocated_bytes": 123832, "runtime.connections": 1}


async def test_a_page_that_has_only_counts_is_of_no_use_beside_a_status_page() -> None:
    """An exporter would be one more client in them."""
    with pytest.raises(PeerError, match="has only counts, and --status-url has these"):
        await read_all([metrics_pages.NGINX_EXPORTER], has_status_page=True)


async def test_a_page_is_read_as_often_as_its_scrape_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(metrics_reader.time, "monotonic", lambda: now_s[0])

    def answer(_: int) -> bytes:
        now_s[0] += 0.04
        return page(GO)

    with serving(answer=answer) as server:
        reader = MetricsReader(server.url)
        pages = MetricsPages([reader], has_status_page=False)
        (poll,) = pages.polls.values()
        try:
            await pages.open()
            assert reader.interval_s == pytest.approx(4.0)
            assert reader.source.cpu_ms == pytest.approx(40.0)
            now_s[0] = 1003.0
            assert (await poll(False)).values == {}
            now_s[0] = 1003.9
            assert (await poll(False)).values
            now_s[0] = 1004.0
            assert (await poll(True)).values
        finally:
            await pages.close()
    assert server.requests == 3
