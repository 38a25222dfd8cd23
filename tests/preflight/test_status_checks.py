"""HAProxy's limit on sessions, read from its status page, and how a server without one gets a page."""

from __future__ import annotations

import pytest
from test_preflight_checks import ROOMY, plan, spread

from asyncli.app.check import check
from asyncli.collect.status_reader import StatusReader
from asyncli.lab import choose
from asyncli.model.products import Backend, Frontend, product_of
from asyncli.model.records import Check
from asyncli.preflight import examine
from asyncli.preflight.configured import Configured

WEB, ADMIN, PAGE = "http://127.0.0.1:8080/", "http://127.0.0.1:8404/stats;csv", "http://127.0.0.1:8080/stats;csv"


def _checks(connections: int, configured: Configured, status_url: str | None = ADMIN) -> dict[str, Check]:
    checks = examine(plan(connections=connections, urls=(WEB,), status_url=status_url), spread(), ROOMY, configured)
    return {one.code: one for one in checks}


@pytest.mark.parametrize(
    ("frontends", "status_url", "needed", "verdict"),
    [
        ({"web": Frontend(0, 300)}, ADMIN, 300, "ok"),
        ({"web": Frontend(0, 300)}, ADMIN, 301, "warn"),
        # The frontend of the page is another one, or ours.
        ({"web": Frontend(0, 300), "stats": Frontend(1, 10)}, ADMIN, 300, "ok"),
        ({"web": Frontend(0, 300), "stats": Frontend(1, 5_000)}, ADMIN, 301, "warn"),
        ({"web": Frontend(1, 300), "other": Frontend(0, 10)}, PAGE, 299, "ok"),
        ({"web": Frontend(1, 300), "other": Frontend(0, 5_000)}, PAGE, 300, "warn"),
        # Either may be ours.
        ({"web": Frontend(50, 5_000), "api": Frontend(40, 300)}, ADMIN, 261, "warn"),
        ({"web": Frontend(50, 5_000), "api": Frontend(40, 300)}, ADMIN, 260, "ok"),
    ],
)
def test_the_sessions_of_the_frontend_that_may_be_ours(
    frontends: dict[str, Frontend], status_url: str, needed: int, verdict: str
) -> None:
    found = _checks(needed, Configured(frontends=frontends), status_url)["haproxy_sessions"]
    assert found.verdict == verdict
    assert bool(found.remedy) is (verdict == "warn")


@pytest.mark.parametrize(
    ("in_all", "needed", "verdict"),
    [(Frontend(2, 300), 298, "ok"), (Frontend(2, 300), 299, "warn"), (None, 299, None)],
)
def test_the_global_maxconn_bounds_all_frontends(
    in_all: Frontend | None, needed: int, verdict: str | None
) -> None:
    checks = _checks(needed, Configured(frontends={"web": Frontend(0, 5_000)}, all_frontends=in_all))
    found = checks.get("haproxy_maxconn")
    assert (found.verdict if found is not None else None) == verdict
    assert checks["haproxy_sessions"].verdict == "ok"


_WEB_SOCKET = "ws://127.0.0.1:8080/"


@pytest.mark.parametrize(
    ("backends", "url", "verdict"),
    [
        ({"b": Backend(10, 310)}, _WEB_SOCKET, "ok"),
        ({"b": Backend(11, 310)}, _WEB_SOCKET, "warn"),
        # A request in HTTP takes a session only until it is answered, unless HAProxy does not read it.
        ({"b": Backend(11, 310)}, WEB, None),
        ({"b": Backend(11, 310, is_tcp=True)}, WEB, "warn"),
        # Either may serve the URL.
        ({"b": Backend(11, 310), "c": Backend(0, 4)}, _WEB_SOCKET, "warn"),
        ({"b": Backend(11, 310), "c": Backend(0, 400)}, _WEB_SOCKET, "unknown"),
        ({"b": Backend(11, 310), "c": Backend(0, None)}, _WEB_SOCKET, "unknown"),
        ({"b": Backend(11, None)}, _WEB_SOCKET, None),
        ({}, _WEB_SOCKET, None),
    ],
)
def test_the_sessions_of_the_servers_behind_the_frontend(
    backends: dict[str, Backend], url: str, verdict: str | None
) -> None:
    configured = Configured(frontends={"web": Frontend(0, 5_000)}, backends=backends)
    soak = plan(connections=300, urls=(url,), status_url=ADMIN)
    checks = {check.code: check for check in examine(soak, spread(), ROOMY, configured)}
    behind = checks.get("haproxy_backend")
    assert (behind.verdict if behind is not None else None) == verdict
    assert behind is None or bool(behind.remedy) is (verdict != "ok")


@pytest.mark.parametrize(("product", "page"), [("HAProxy", ";csv"), ("Apache", "server-status?auto"), ("", "")])
def test_a_server_whose_page_is_not_named_is_told_how_to_have_one(product: str, page: str) -> None:
    checks = _checks(300, Configured(product=product), None)
    assert ("status_page" in checks) is bool(page)
    assert not page or page in checks["status_page"].remedy
    assert "status_page" not in _checks(300, Configured(product=product), ADMIN)


def test_products_by_their_programs_and_labels() -> None:
    assert {name: product_of(name) for name in ("haproxy", "Apache/2.4", "apache2", "openresty/1.25", "caddy", "")} == {
        "haproxy": "HAProxy", "Apache/2.4": "Apache", "apache2": "Apache", "openresty/1.25": "nginx", "caddy": "", "": "",
    }  # fmt: skip


@pytest.mark.haproxy
async def test_haproxys_own_page_says_that_it_has_no_room() -> None:
    async with choose("haproxy", connections=30) as server:
        reader = StatusReader(server.status_url)
        await reader.read()
        await reader.close()
        room = max(frontend.limit for name, frontend in reader.frontends.items() if not frontend.open)
        for needed, verdict in ((room, "ok"), (room + 1, "warn")):
            soak = plan(connections=needed, urls=(server.url,), status_url=server.status_url)
            found = {one.code: one for one in (await check(soak, connects=False, beats=False)).checks}
            assert (found["haproxy_sessions"].verdict, found["haproxy_sessions"].have) == (verdict, room)
        unnamed = plan(connections=30, urls=(server.url,))
        assert "status_page" in {one.code for one in (await check(unnamed, connects=False, beats=False)).checks}


@pytest.mark.parametrize("product", ["HAProxy", "", "Apache"])
def test_a_page_of_metrics_that_counts_is_in_place_of_a_status_page(product: str) -> None:
    check = _checks(100, Configured(product=product, counted_by="a_gauge"), None)["status_page"]
    assert check.verdict == "ok"
    assert "a_gauge" in check.detail


def test_a_page_of_metrics_of_another_program_is_told() -> None:
    check = _checks(100, Configured(page_of="app (pid 311)"), None)["metrics_page"]
    assert (check.verdict, "311" in check.what) == ("unknown", True)
    assert "metrics_page" not in _checks(100, Configured(), None)
