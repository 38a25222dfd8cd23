"""The status pages of nginx, Apache and HAProxy as real servers wrote them: recognised by their text, and parsed."""

from __future__ import annotations

import pytest
from status_pages import CSV, EVENT, HAPROXY, LAB, NGINX, PREFORK, TENGINE

from asyncli.collect import status_pages
from asyncli.collect.status_pages import NotStatusPage, OurBackend, OurFrontend, excerpt, impossible_count, parse_page
from asyncli.model.products import Backend, Frontend

HTML = "<html>\r\n<head><title>Welcome to nginx!</title></head>\n\x1b[31m" + "x" * 10_000


def test_nginx_has_all_values() -> None:
    kind, values, *_ = parse_page(NGINX)
    assert kind == "stub_status"
    assert {name.removeprefix("status."): value for name, value in values.items()} == {
        "active": 15001, "accepts": 15012, "handled": 15011, "requests": 31893, "reading": 0, "writing": 1, "waiting": 15000,
    }  # fmt: skip


def test_additional_columns_are_accepted() -> None:
    values = parse_page(TENGINE).values
    assert (values["status.accepts"], values["status.handled"], values["status.requests"]) == (10, 9, 20)


def test_prefork_counts_busy_processes_as_connections_and_no_accepts() -> None:
    page = parse_page(PREFORK)
    assert page == ("server-status", {"status.active": 4, "status.reading": 0, "status.writing": 1, "status.waiting": 3, "status.busy": 4, "status.idle": 9, "status.generation": 0, "status.places": 13}, {}, {})


def test_event_counts_connections_not_threads() -> None:
    assert parse_page(EVENT).values == {"status.active": 4, "status.waiting": 4, "status.busy": 1, "status.idle": 255, "status.generation": 0}


@pytest.mark.parametrize("change", [("Processes: 1", "Processes: 2"), ("ConnsTotal: 4", "ConnsTotal: 0")])
def test_possibly_stale_connections_of_event_are_absent(change: tuple[str, str]) -> None:
    assert parse_page(EVENT.replace(*change)).values.keys() == {"status.busy", "status.idle", "status.generation"}


@pytest.mark.parametrize("page", [PREFORK, EVENT])
def test_apache_with_extended_status_counts_requests(page: str) -> None:
    extended = page.replace("BusyWorkers", "Total Accesses: 1234\nTotal kBytes: 5\nBusyWorkers")
    assert parse_page(extended).values == {**parse_page(page).values, "status.requests": 1234}


def test_haproxys_frontends_are_summed_with_the_one_that_serves_the_page() -> None:
    counts = {"status.active": 4, "status.accepts": 7, "status.handled": 5, "status.requests": 12}
    found = parse_page(HAPROXY + LAB.replace("FRONTEND", "BACKEND"))
    assert found == ("haproxy", counts, {"lab": Frontend(3, 58), "stats": Frontend(1, 58)}, {})


@pytest.mark.parametrize(
    ("own", "others", "limit"),
    [(300, 5000, 301), (300, 300, 300), (5000, 5000, 5000), (5000, 10, 5000)],
)
def test_the_frontend_whose_sessions_rise_most_is_ours_and_the_greatest_slim_is_for_all(own: int, others: int, limit: int) -> None:
    """Beside it one serves the page, by any name."""
    ours = OurFrontend()
    pages = [{"f": Frontend(have, own), "st": Frontend(1, others)} for have in (0, 2, 299, 0)]
    assert [ours.limit(page) for page in pages] == [{}, *[{"status.limit": limit}] * 3]
    assert OurFrontend().limit({"all": Frontend(1, own)}) == {"status.limit": own}


SERVERS = [
    # name, status, act, bck, scur, slim
    ("BACKEND", "UP", 2, 1, 5, 7),
    ("a", "UP", 1, 0, 2, 100),
    ("b", "no check", 1, 0, 3, 50),
    ("down", "DOWN", 1, 0, 0, 1),
    ("drained", "DRAIN", 1, 0, 0, 1),
    ("spare", "UP", 0, 1, 0, 9),
]  # fmt: skip


def backends_of(servers: list[tuple[str, str, int, int, int, int | str]], mode: str = "http") -> dict[str, Backend]:
    """The backend "web" of a page with these servers, its frontend beside it."""
    rows = ["web,FRONTEND,OPEN,,,,5,900,http"]
    rows += [f"web,{name},{status},1,{act},{bck},{scur},{slim},{mode}" for name, status, act, bck, scur, slim in servers]
    return dict(parse_page("# pxname,svname,status,weight,act,bck,scur,slim,mode\n" + "\n".join(rows) + "\n").backends)


def test_the_servers_of_a_backend_that_serve_are_summed() -> None:
    assert backends_of(SERVERS) == {"web": Backend(5, 150)}
    assert backends_of([("a", "UP", 1, 0, 2, ""), *SERVERS]) == {"web": Backend(7, None)}
    assert backends_of(SERVERS[-1:], "tcp") == {"web": Backend(0, 9, is_tcp=True)}
    assert backends_of(SERVERS[:1] + SERVERS[3:5]) == {}


def test_the_backend_that_is_full_first_is_ours() -> None:
    ours = OurBackend()
    pages = [
        {"web": Backend(4, 154), "api": Backend(0, 10), "other": Backend(0, None)},
        {"web": Backend(5, 154), "api": Backend(0, 10), "other": Backend(0, None)},
        {"web": Backend(44, 154), "api": Backend(2, 10), "other": Backend(0, None)},
        {"web": Backend(44, 154), "api": Backend(2, 10), "other": Backend(99, None)},
    ]
    found = [{name.rpartition(".")[2]: number for name, number in ours.limit(page).items()} for page in pages]
    assert found == [{}, {"behind": 1, "behind_limit": 150}, {"behind": 40, "behind_limit": 150}, {}]


def test_of_two_backends_that_share_our_connections_the_fuller_one_is_told() -> None:
    ours = OurBackend()
    assert ours.limit({"a": Backend(0, 500), "b": Backend(0, 100)}) == {}
    assert [*ours.limit({"a": Backend(30, 500), "b": Backend(30, 100)}).values()] == [30, 100]


def test_a_column_that_a_version_lacks_is_absent() -> None:
    page = parse_page(HAPROXY.replace("req_tot", "else").replace("conn_tot", "other").replace("slim", "more"))
    assert page[1:] == ({"status.active": 4, "status.accepts": 5, "status.handled": 5}, {}, {})


@pytest.mark.parametrize(
    "text",
    ["", "OK", HTML, NGINX + "and more", NGINX.replace("15012", "many"), NGINX[:40], PREFORK[:200], CSV, CSV + LAB.replace("FRONTEND", "BACKEND")],
)
def test_an_unknown_page_is_refused(text: str) -> None:
    with pytest.raises(NotStatusPage):
        parse_page(text)


def test_an_excerpt_is_one_printable_line() -> None:
    assert excerpt("a\r\nb\x1b[31m") == '"a b?[31m"'
    assert excerpt("x" * 100, 10) == '"xxxxxxxxxx..."'


def test_a_parser_cannot_return_an_unknown_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if this page lacks it: an agent's session would drop it."""
    monkeypatch.delitem(status_pages._METRIC, "requests")
    with pytest.raises(KeyError, match="requests"):
        parse_page(HAPROXY.replace("req_tot", "else"))


STUB = "Active connections: {} \nserver accepts handled requests\n {} {} {} \nReading: 0 Writing: 1 Waiting: 0 \n"


@pytest.mark.parametrize(
    ("counts", "before", "possible"),
    [
        ((101, 1000, 1000, 5000), None, True),
        ((101, 1000, 1000, 5000), (51, 900, 900, 100), True),
        # Numbers that no host has room for, or that no float counts.
        ((99999999999999999999, 1000, 1000, 5000), None, False),
        ((2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1), None, False),
        ((5_000_000_000, 6_000_000_000, 6_000_000_000, 1), None, False),
        ((101, 10**17, 10**17, 5000), None, False),
        ((101, 1000, 1000, 10**17), None, False),
        # More active than were ever accepted; a few are in between.
        ((101, 100, 100, 5000), None, True),
        ((2_000_000, 1000, 1000, 5000), None, False),
        # More active than were accepted since the last page, and more accepted than a kernel can.
        ((1_000_000, 2_000_100, 2_000_100, 5000), (51, 2_000_000, 2_000_000, 100), False),
        ((1_000_000_000, 2_000_000_000, 2_000_000_000, 5000), (51, 900, 900, 100), False),
        # A restarted server counts from zero.
        ((900, 1000, 1000, 5), (51, 90_000, 90_000, 100), True),
    ],
)
def test_counts_that_no_server_can_have(counts: tuple[int, ...], before: tuple[int, ...] | None, possible: bool) -> None:
    page = parse_page(STUB.format(*counts))
    earlier = None if before is None else parse_page(STUB.format(*before)).values
    assert (impossible_count(page, earlier, 1.0) == "") is possible


def test_haproxy_may_have_cleared_its_totals() -> None:
    page = parse_page("# pxname,svname,scur,slim,stot,req_tot\nall,FRONTEND,4000,9000,6,9\n")
    assert impossible_count(page, None, 1.0) == ""
