"""The status pages of nginx, Apache and HAProxy, as the real servers wrote them: known by their text, and read for what they tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from status_pages import CSV, EVENT, HAPROXY, LAB, NGINX, PREFORK, STATS, TENGINE

from asyncli.collect import pages
from asyncli.collect.pages import NotStatusPage, excerpt, parse_page

HTML = "<html>\r\n<head><title>Welcome to nginx!</title></head>\n\x1b[31m" + "x" * 10_000


def test_nginx_tells_everything() -> None:
    assert parse_page(NGINX) == (
        "stub_status",
        {
            "status.active": 15001,
            "status.accepts": 15012,
            "status.handled": 15011,
            "status.requests": 31893,
            "status.reading": 0,
            "status.writing": 1,
            "status.waiting": 15000,
        },
        True,
    )


def test_more_columns_are_let_through() -> None:
    values = parse_page(TENGINE).values
    assert (values["status.accepts"], values["status.handled"], values["status.requests"]) == (10, 9, 20)


def test_busy_processes_of_prefork_are_connections_and_no_accepts_are_made_up() -> None:
    page = parse_page(PREFORK)
    assert page == ("server-status", {"status.active": 4, "status.reading": 0, "status.writing": 1, "status.waiting": 3, "status.busy": 4, "status.idle": 9}, True)


def test_event_tells_connections_and_not_threads() -> None:
    assert parse_page(EVENT).values == {"status.active": 4, "status.waiting": 4, "status.busy": 1, "status.idle": 255}


@pytest.mark.parametrize("change", [("Processes: 1", "Processes: 2"), ("ConnsTotal: 4", "ConnsTotal: 0")])
def test_connections_of_event_that_may_be_out_of_date_are_not_told(change: tuple[str, str]) -> None:
    assert parse_page(EVENT.replace(*change)).values.keys() == {"status.busy", "status.idle"}


@pytest.mark.parametrize("page", [PREFORK, EVENT])
def test_apache_with_extended_status_tells_requests(page: str) -> None:
    extended = page.replace("BusyWorkers", "Total Accesses: 1234\nTotal kBytes: 5\nBusyWorkers")
    assert parse_page(extended).values == {**parse_page(page).values, "status.requests": 1234}


def test_haproxy_s_frontends_are_summed_without_the_one_of_the_page() -> None:
    counts = {"status.active": 3, "status.accepts": 5, "status.handled": 3, "status.requests": 6, "status.limit": 58}
    assert parse_page(HAPROXY) == ("haproxy", counts, False)
    twice = parse_page(HAPROXY + LAB.replace("lab", "other") + LAB.replace("FRONTEND", "BACKEND"))
    assert twice.values == {name: 2 * count for name, count in counts.items()}


def test_a_lone_frontend_that_serves_the_page_too_counts_us() -> None:
    page = parse_page(CSV + STATS)
    assert (page.values["status.active"], page.with_us) == (1, True)


def test_a_column_that_a_version_lacks_is_absent() -> None:
    page = parse_page(HAPROXY.replace("req_tot", "else").replace("conn_tot", "other"))
    assert page.values == {"status.active": 3, "status.accepts": 3, "status.handled": 3, "status.limit": 58}


@pytest.mark.parametrize("page", [NGINX, PREFORK, EVENT, HAPROXY])
def test_line_ends_make_no_difference(page: str) -> None:
    assert parse_page(page.replace("\n", "\r\n")) == parse_page(page)


@pytest.mark.parametrize(
    "text",
    ["", "OK", HTML, NGINX + "and more", NGINX.replace("15012", "many"), NGINX[:40], PREFORK[:200], CSV, CSV + LAB.replace("FRONTEND", "BACKEND")],
)
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(NotStatusPage):
        parse_page(text)


@pytest.mark.parametrize(
    "text",
    [
        NGINX.replace("15001", "9" * 400),
        NGINX.replace("31893", "9" * 21),
        CSV + "x" * 140_000,
        # In a pattern that gives back what it took, these two are tried in each of their splits: minutes.
        NGINX.replace(" \nserver", "\n" * 500_000 + "sever"),
        NGINX.replace("31893 \n", "3" * 500_000),
    ],
    ids=["beyond a float", "beyond 64 bits", "cell", "line ends", "digits"],
)
def test_what_no_server_writes_is_refused_at_once(text: str) -> None:
    with pytest.raises(NotStatusPage):
        parse_page(text)


def test_a_count_that_no_server_has_is_not_told() -> None:
    assert parse_page(PREFORK.replace("BusyWorkers: 4", "BusyWorkers: " + "9" * 400)).values.keys() == {"status.reading", "status.writing", "status.waiting", "status.idle"}


def test_a_row_may_leave_out_a_column_that_is_named_twice() -> None:
    assert parse_page("# pxname,svname,scur,pxname\nlab,FRONTEND,3\n").values == {"status.active": 3}


@given(st.sampled_from([NGINX, PREFORK, EVENT, HAPROXY]), st.integers(0, 2000), st.text(max_size=20))
def test_a_broken_page_is_refused_or_read_but_never_a_traceback(page: str, at: int, garbage: str) -> None:
    at %= len(page)
    try:
        values = parse_page(page[:at] + garbage + page[at:]).values
    except NotStatusPage:
        return
    assert all(value >= 0 for value in values.values())


def test_an_excerpt_is_one_printable_line() -> None:
    assert excerpt("a\r\nb\x1b[31m") == '"a b?[31m"'
    assert excerpt("x" * 100, 10) == '"xxxxxxxxxx..."'


def test_a_parser_cannot_give_what_is_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where this page does not tell it: an agent's session would drop it."""
    monkeypatch.delitem(pages._METRIC, "limit")
    with pytest.raises(KeyError, match="limit"):
        parse_page(HAPROXY.replace(",58,", ",,"))
