"""The status page of a server whose configuration is not read: how to add it, and HAProxy's limit
by its page. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncli.model.plan import Plan
from asyncli.model.products import Backend, Frontend
from asyncli.model.records import Check
from asyncli.model.status_place import status_place
from asyncli.model.units import format_count
from asyncli.model.values import parse_url
from asyncli.preflight.configured import Configured
from asyncli.preflight.limit import Verdict, limit

# How to add the page, by product. nginx's is proposed by its own configuration (nginx_checks.py).
_HOW_TO_ADD = {
    "HAProxy": (
        "--status-url 'http://HOST:PORT/PATH;csv', where haproxy.cfg has a 'stats uri'; without "
        "one add a 'frontend stats' with the lines 'mode http', 'bind 127.0.0.1:8404', "
        "'stats enable', 'stats uri /stats', reload HAProxy, and "
        "--status-url 'http://127.0.0.1:8404/stats;csv'"
    ),
    "Apache": (
        "load mod_status (Debian: a2enmod status), with ExtendedStatus On, and "
        "--status-url 'http://127.0.0.1/server-status?auto'"
    ),
}


def status_checks(plan: Plan, configured: Configured) -> list[Check]:
    """The checks of the pages that were read, or how to have one."""
    checks = _status_checks(plan, configured)
    if configured.page_of:
        checks.append(_page_of_another(configured.page_of))
    return checks


def _page_of_another(program: str) -> Check:
    """Whether that program is behind the server shows when connections are held."""
    return Check(
        "metrics_page",
        f"page of metrics (--server-metrics), of {program}",
        "unknown",
        detail=f"{program} does not listen at the URL: its heap is no part of the server's memory",
        remedy="name the page of the server itself (--server-metrics), if it has one",
    )


def _status_checks(plan: Plan, configured: Configured) -> list[Check]:
    if configured.frontends:
        checks = [_sessions(plan, configured.frontends), *_behind(plan, configured.backends)]
        if configured.all_frontends is not None:
            checks.append(_in_all(plan, configured.all_frontends))
        return checks
    if plan.status_url is not None:
        return []
    if configured.counted_by and configured.nginx is None:
        subject = "the server's count of connections (its own metrics)"
        detail = f"{configured.counted_by} of --server-metrics"
        return [Check("status_page", subject, "ok", detail=detail)]
    if configured.product not in _HOW_TO_ADD:
        return []
    product = configured.product
    detail = (
        "it is read only with --status-url, so it is not compared with asyncli's, "
        "nor are its limits"
    )
    subject = f"{product}'s count of connections (status page)"
    return [Check("status_page", subject, "warn", detail=detail, remedy=_HOW_TO_ADD[product])]


def _sessions(plan: Plan, frontends: Mapping[str, Frontend]) -> Check:
    """The limit on sessions (slim) of the frontend that serves the plan's URL, or of those that
    may.
    """
    code = "haproxy_sessions"
    subject = "sessions of HAProxy's frontend (slim, maxconn)"
    possible = _may_serve(plan, frontends)
    tightest = min(possible, key=lambda name: possible[name].limit - possible[name].open)
    frontend = possible[tightest]
    need = plan.connections + frontend.open
    detail = f"frontend {tightest}, with {format_count(frontend.open)} open now"
    if need <= frontend.limit:
        return Check(code, subject, "ok", frontend.limit, need, "sessions", detail)
    if len(possible) > 1:
        detail += "; its status page does not tell whether the URL leads to this one"
    detail += "; beyond it connects wait in its listen queue"
    remedy = (
        f"maxconn {need} in the frontend {tightest} of haproxy.cfg, and at least as much in global"
    )
    # More URLs may lead to more frontends, and a page may be another server's: no certain failure.
    return Check(code, subject, "warn", frontend.limit, need, "sessions", detail, remedy)


def _in_all(plan: Plan, frontends: Frontend) -> Check:
    """The global maxconn, which bounds all frontends together."""
    need = plan.connections + frontends.open
    # A page may be another server's: no certain failure.
    return limit(
        "haproxy_maxconn",
        "connections of all HAProxy's frontends (global maxconn)",
        "connections",
        frontends.limit,
        need,
        short="warn",
        detail=f"{format_count(frontends.open)} open now; "
        "beyond it connects wait in its listen queues",
        remedy=f"maxconn {need} in the global section of haproxy.cfg",
    )


def _behind(plan: Plan, backends: Mapping[str, Backend]) -> list[Check]:
    """The limit on sessions (slim) of the servers of a backend, where a connection holds one of
    these: a request in HTTP does only until it is answered. Which backend serves the plan's URL
    does not show, so it is checked with the tightest.
    """
    rooms = {
        name: backend.room for name, backend in backends.items() if plan.upgrades or backend.is_tcp
    }
    if not rooms:
        return []
    tightest = min(rooms, key=lambda name: rooms[name])
    have = backends[tightest].limit
    if have is None:
        return []
    code = "haproxy_backend"
    subject = "sessions of the servers behind HAProxy (slim, maxconn of server)"
    taken = backends[tightest].open
    need = plan.connections + taken
    detail = f"backend {tightest}, whose servers have {format_count(taken)} open now"
    if need <= have:
        return [Check(code, subject, "ok", have, need, "sessions", detail)]
    verdict: Verdict = "warn"
    if any(room >= plan.connections for room in rooms.values()):
        verdict = "unknown"
        detail += "; its status page does not tell whether the URL leads to this one"
    detail += "; beyond it connections wait in its queue (timeout queue)"
    remedy = f"a greater maxconn of the servers of the backend {tightest} in haproxy.cfg"
    return [Check(code, subject, verdict, have, need, "sessions", detail, remedy)]


def _may_serve(plan: Plan, frontends: Mapping[str, Frontend]) -> Mapping[str, Frontend]:
    """The frontends that may serve the plan's URL: the one that serves the status page at the same
    place, else the others.

    Where exactly one has sessions, these are of our poller.
    """
    with_sessions = [name for name, frontend in frontends.items() if frontend.open]
    if len(frontends) == 1 or len(with_sessions) != 1 or plan.status_url is None:
        return frontends
    of_page = with_sessions[0]
    if _is_at_a_target(plan.status_url, plan):
        return {of_page: frontends[of_page]}
    return {name: frontend for name, frontend in frontends.items() if name != of_page}


def _is_at_a_target(status_url: str, plan: Plan) -> bool:
    """Whether the status page is served at the address and port of a target."""
    place = status_place(status_url)
    page = parse_url(place.url)
    address = (place.socket, 0) if place.socket else (page.host, page.port)
    return any(address == (target.host, target.port) for target in plan.targets)
