"""The status pages of nginx, Apache and HAProxy, as the real servers wrote them: known by their text, and read for what they tell."""

from __future__ import annotations

import pytest
from status_pages import CSV, EVENT, HAPROXY, LAB, NGINX, PREFORK, STATS, TENGINE

from asyncli.collect import status_pages
from asyncli.collect.status_pages import NotStatusPage, excerpt, parse_page

HTML = "<html>\r\n<head><title>Welcome to nginx!</title></head>\n\x1b[31m" + "x" * 10_000


def test_nginx_tells_everything() -> None:
    kind, values, with_us = parse_page(NGINX)
    assert (kind, with_us) == ("stub_status", True)
    assert {name.removeprefix("status."): value for name, value in values.items()} == {
        "active": 15001, "accepts": 15012, "handled": 15011, "requests": 31893, "reading": 0, "writing": 1, "waiting": 15000,
    }  # fmt: skip


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


@pytest.mark.parametrize(
    "text",
    ["", "OK", HTML, NGINX + "and more", NGINX.replace("15012", "many"), NGINX[:40], PREFORK[:200], CSV, CSV + LAB.replace("FRONTEND", "BACKEND")],
)
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(NotStatusPage):
        parse_page(text)


def test_an_excerpt_is_one_printable_line() -> None:
    assert excerpt("a\r\nb\x1b[31m") == '"a b?[31m"'
    assert excerpt("x" * 100, 10) == '"xxxxxxxxxx..."'


def test_a_parser_cannot_give_what_is_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where this page does not tell it: an agent's session would drop it."""
    monkeypatch.delitem(status_pages._METRIC, "limit")
    with pytest.raises(KeyError, match="limit"):
        parse_page(HAPROXY.replace(",58,", ",,"))
