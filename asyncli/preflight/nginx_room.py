"""Checks a plan whose connections nginx serves all their life, such as WebSockets, against what
nginx counts of these: limit_conn, max_conns of its backends, and the ports to connect to them from.

Pure. Of keep-alive connections nginx counts only those with a request in progress, so these limits
do not bound them. Sources: ngx_http_limit_conn_module, ngx_http_upstream_module (nginx.org).
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.units import format_count, format_many
from asyncli.preflight.limit import Verdict, limit
from asyncli.preflight.nginx_blocks import NginxConfig, Upstream
from asyncli.preflight.nginx_config import is_address
from asyncli.preflight.nginx_ways import Passage

# Keys of limit_conn that have one value for each address of a client, and those that have one for
# all clients of a server block and address.
_OF_CLIENT = frozenset({"$binary_remote_addr", "$remote_addr"})
_NAME = "$server_name"
_OF_ALL = frozenset({_NAME, "$server_port", "$server_addr"})


def room_checks(
    config: NginxConfig,
    passage: Passage,
    plan: Plan,
    *,
    workers: int | None,
    sources: int | None,
    source_ports: float | None,
) -> Iterator[Check]:
    """``workers`` of nginx; ``sources``: the addresses that asyncli connects from;
    ``source_ports``: those that nginx may connect from to a backend. None: unknown.
    """
    limits = []
    for rule in passage.connection_limits:
        key = config.zones.get(rule.zone, "")
        # nginx does not count requests whose key is empty.
        if key != _NAME or passage.server_name:
            limits.append(_limit_conn(key, rule.number, plan, sources))
    if limits:
        yield min(limits, key=_room_or_none)
    upstream = _upstream_of(config, passage)
    if upstream is None:
        return
    max_conns = _max_conns(upstream, plan, workers)
    if max_conns is not None:
        yield max_conns
    if upstream.addresses:
        yield _ports(upstream, plan, source_ports, is_bound=passage.has_proxy_bind)


def _room_or_none(check: Check) -> float:
    """The room, 0 where it is unknown: an unknown limit may be the lowest."""
    return check.have or 0.0


def _limit_conn(key: str, number: int, plan: Plan, sources: int | None) -> Check:
    code = "nginx_limit_conn"
    subject = "connections with a request in progress (limit_conn)"
    have = None
    detail = f"{format_count(number)} for each value of {key or 'its key'}"
    if key in _OF_ALL or (key and "$" not in key):
        have = number
        detail = f"{format_count(number)} for all clients together (key {key})"
    elif key in _OF_CLIENT and sources is not None:
        have = number * sources
        addresses = format_many(sources, "address")
        detail = (
            f"{format_count(number)} for each client address, and asyncli has {addresses} ({key})"
        )
    if have is None:
        detail += ": asyncli cannot tell how many values its connections have"
        return Check(code, subject, "unknown", None, plan.connections, "connections", detail)
    return limit(
        code,
        subject,
        "connections",
        have,
        plan.connections,
        detail=f"{detail}; beyond it nginx answers limit_conn_status (503)",
        remedy=f"a greater number in limit_conn of nginx.conf than {format_count(number)}",
    )


def _upstream_of(config: NginxConfig, passage: Passage) -> Upstream | None:
    """The backends that a request is passed to; None: none, or unknown by a variable."""
    _, mark, place = passage.proxied.partition("://")
    if not mark or "$" in place:
        return None
    if place in config.upstreams:
        return config.upstreams[place]
    if place.startswith("unix:"):
        return Upstream()
    return Upstream(addresses=frozenset({place}), is_exact=is_address(place))


def _max_conns(upstream: Upstream, plan: Plan, workers: int | None) -> Check | None:
    """None without a limit."""
    if upstream.connections is None:
        return None
    code = "nginx_max_conns"
    subject = "connections to nginx's backends (max_conns)"
    have: int | None = upstream.connections
    detail = f"{format_count(upstream.connections)} in all workers together"
    if not upstream.is_shared:
        have = None if workers is None else workers * upstream.connections
        of_workers = "its workers" if workers is None else format_many(workers, "worker")
        detail = f"{format_count(upstream.connections)} in each of {of_workers} (without zone)"
    if have is None or not upstream.is_exact:
        detail += "; a backend that is a name may have several addresses, each with its own"
        return Check(code, subject, "unknown", have, plan.connections, "connections", detail)
    return limit(
        code,
        subject,
        "connections",
        have,
        plan.connections,
        detail=f"{detail}; beyond it nginx answers 502",
        remedy="a greater max_conns in the upstream of nginx.conf",
    )


def _ports(upstream: Upstream, plan: Plan, source_ports: float | None, *, is_bound: bool) -> Check:
    """One for each connection to an address of a backend."""
    code = "nginx_proxy_ports"
    subject = "source ports of nginx to its backends"
    backends = len(upstream.addresses)
    if source_ports is None:
        detail = "ip_local_port_range of its network namespace could not be read"
        return Check(code, subject, "unknown", None, plan.connections, "ports", detail)
    have = backends * source_ports
    addresses = format_many(backends, "address")
    detail = f"{format_count(source_ports)} (ip_local_port_range) x {addresses}"
    if is_bound or not upstream.is_exact:
        detail += "; with proxy_bind, or a name that has several addresses, there are more"
        verdict: Verdict = "unknown" if have < plan.connections else "ok"
        return Check(code, subject, verdict, have, plan.connections, "ports", detail)
    return limit(
        code,
        subject,
        "ports",
        have,
        plan.connections,
        detail=detail,
        remedy="a wider net.ipv4.ip_local_port_range there, more addresses of the backend, or "
        "proxy_bind",
    )
