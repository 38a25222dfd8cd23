"""Checks a plan against an nginx's configuration: which directives limit or close connections.

Pure. The rules are nginx's (nginx.org, ngx_http_request.c and ngx_connection.c of 1.22).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from asyncli.model import metrics
from asyncli.model.masks import masked_page
from asyncli.model.plan import Plan
from asyncli.model.records import Check
from asyncli.model.template import OpenTemplate
from asyncli.model.units import format_count, format_many, shown, tenth_more
from asyncli.model.values import Target
from asyncli.preflight.configured import Configured
from asyncli.preflight.demand import STALL_S
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.limit import Verdict, limit
from asyncli.preflight.nginx_blocks import Listen, NginxConfig, ServerBlock
from asyncli.preflight.nginx_choice import StatusAddress, listen_for, server_for, status_pages
from asyncli.preflight.nginx_room import room_checks
from asyncli.preflight.nginx_timers import timer_checks
from asyncli.preflight.nginx_ways import KindOf, passage_for, timers_for
from asyncli.preflight.patterns import Undecided

# nginx's NGX_LISTEN_BACKLOG on Linux.
_DEFAULT_BACKLOG = 511
# At this share of free slots or less, an accept closes the clients that have been idle longest.
_REUSE_BELOW = 1 / 16
# reuseport's hash gives a binomial share: fewer than one in a billion are six deviations above the
# mean.
_DEVIATIONS = 6.0
# Listeners, the channel to the master, logs, epoll and standard descriptors of a worker.
_WORKER_DESCRIPTORS = 32
_STATUS_PORT = 8081


def nginx_checks(
    config: NginxConfig,
    plan: Plan,
    limits: Limits,
    configured: Configured,
    addresses: Mapping[int, Sequence[str]],
    kind_of: KindOf,
    sources: int | None = None,
) -> list[Check]:
    """One check for each directive that a soak depends on; with several URLs or addresses the worst
    of each.

    ``limits``: of the host. ``addresses``: those that the plan's targets have, by their number.
    ``kind_of``: looks up nginx's files. ``sources``: how many addresses asyncli connects
    from; None: unknown.
    """
    worst: dict[str, Check] = {}
    for number, target in enumerate(plan.targets):
        for address in addresses.get(number) or [target.host]:
            of_target = _target_checks(
                config, plan, target, address, limits, configured, kind_of, sources
            )
            for check in of_target:
                if _is_worse(check, worst.get(check.code)):
                    worst[check.code] = check
    checks = list(worst.values())
    if worst.keys() != {"nginx_listen"}:
        # An nginx that listens at no target does not count these connections.
        checks.append(_status(config, plan, limits, configured))
    return checks


def _is_worse(check: Check, other: Check | None) -> bool:
    """Whether ``check`` is the first of its code, or has a worse verdict than the ``other``."""
    if other is None:
        return True
    return _RANK[check.verdict] > _RANK[other.verdict]


def _target_checks(
    config: NginxConfig,
    plan: Plan,
    target: Target,
    address: str,
    limits: Limits,
    configured: Configured,
    kind_of: KindOf,
    sources: int | None,
) -> Iterator[Check]:
    # A Unix socket has no port; its path is the target's host.
    place = address if target.port else target.host
    name = target.name if target.asked else target.host
    host = _asked_host(plan, name)
    server = server_for(config, place, target.port, host)
    listen = listen_for(config, place, target.port)
    if server is None or listen is None:
        yield _no_listen(config, target)
        return
    if isinstance(server, Undecided):
        yield _undecided(server, config)
        yield from _capacity_checks(config, listen, plan, limits, configured)
        return
    if listen.proxy_protocol != (plan.proxy_protocol is not None):
        yield _proxy_protocol(listen)
    # Of connection 0; a placeholder for the plan's data stays.
    path = OpenTemplate(target.path).fill({"n": 0, "random": "0" * 6})
    if plan.upgrades:
        passage = passage_for(server, path, kind_of)
        if isinstance(passage, Undecided):
            yield _undecided(passage, config)
        else:
            yield from room_checks(
                config,
                passage,
                plan,
                workers=config.workers or limits.cpus,
                sources=_sources_seen(config, server, plan, sources),
                source_ports=configured.limits.get(metrics.SERVER_SOURCE_PORTS),
            )
    else:
        timers = timers_for(server, path, kind_of)
        if isinstance(timers, Undecided):
            yield _undecided(timers, config)
        else:
            yield from timer_checks(timers, plan)
    yield from _capacity_checks(config, listen, plan, limits, configured)


def _sources_seen(
    config: NginxConfig, server: ServerBlock, plan: Plan, sources: int | None
) -> int | None:
    """How many client addresses nginx sees; None where a header may give it others."""
    has_header = "http real_ip_header" in config.directives
    if has_header or "real_ip_header" in server.directives or plan.proxy_protocol is not None:
        return None
    return sources


def _no_listen(config: NginxConfig, target: Target) -> Check:
    where = f"unix:{target.host}"
    if target.port:
        where = f"port {target.port}"
    return Check(
        "nginx_listen",
        f"a server block that listens on {where}",
        "unknown",
        detail=f"{config.path} has none: its limits are unknown",
        remedy="name the nginx that serves it with --server-pid",
    )


def _proxy_protocol(listen: Listen) -> Check:
    remedy = "write --proxy-protocol v1 or v2"
    if not listen.proxy_protocol:
        place = listen.place or listen.port
        remedy = f"leave --proxy-protocol out, or listen {place} proxy_protocol in nginx.conf"
    return Check(
        "nginx_proxy_protocol",
        "proxy_protocol of nginx's listen",
        "short",
        detail="only one of nginx and the plan uses it, so no request succeeds",
        remedy=remedy,
    )


def _undecided(undecided: Undecided, config: NginxConfig) -> Check:
    """No check of the timers, which are those of the server block that nginx chooses."""
    return Check(
        "nginx_pattern",
        "the server block and location of the URL",
        "unknown",
        detail=f"asyncli cannot tell whether {shown(undecided.pattern)} of {config.path} matches, "
        "so nginx's timers and limits there are unknown",
        remedy="compare its timers with the plan yourself",
    )


_RANK: dict[str, int] = {"ok": 0, "unknown": 1, "warn": 2, "short": 3}


def _asked_host(plan: Plan, host: str) -> str:
    """The name in the Host header: the plan's own header, else the URL's."""
    for header in plan.headers:
        name, _, value = header.partition(":")
        if name.lower() == "host":
            return _without_port(value.strip())
    return host


def _without_port(host: str) -> str:
    if host.count(":") != 1:
        # No port, or an IPv6 address.
        return host
    name, _, _ = host.partition(":")
    return name or host


def _capacity_checks(
    config: NginxConfig, listen: Listen, plan: Plan, limits: Limits, configured: Configured
) -> Iterator[Check]:
    workers = config.workers
    if workers is None:
        # worker_processes auto: one for each CPU.
        workers = limits.cpus
    if workers is None:
        detail = "worker_processes is auto and the number of CPUs could not be read"
        subject = "nginx's connection slots"
        yield Check("nginx_worker_connections", subject, "unknown", detail=detail)
        return
    workers = max(1, workers)
    yield _slots(config, workers, plan)
    yield _descriptors(config, workers, plan, configured.inherited_nofile)
    yield _reuseport(config, listen, workers, plan)
    yield _backlog(listen, workers, plan, limits)


def _share(connections: int, workers: int) -> float:
    """The most connections that one worker gets if the kernel distributes them by a hash."""
    mean = connections / workers
    if workers == 1:
        return mean
    return mean + _DEVIATIONS * math.sqrt(mean)


def _slots(config: NginxConfig, workers: int, plan: Plan) -> Check:
    have = workers * config.worker_connections
    largest_share = _share(plan.connections, workers)
    detail = f"{format_many(workers, 'worker')} x {format_count(config.worker_connections)}"
    # nginx closes only idle HTTP connections, not upgraded ones or streams.
    usable_share = 1.0
    if not plan.upgrades:
        usable_share = 1 - _REUSE_BELOW
        detail += "; nginx closes idle clients when a sixteenth or less is free"
    # Any worker may get the largest share.
    need_by_share = workers * math.ceil(largest_share / usable_share)
    need = max(tenth_more(plan.connections), need_by_share)
    remedy = f"worker_connections {tenth_more(largest_share) + 16} in nginx.conf"
    verdict: Verdict
    if plan.connections > have * usable_share:
        verdict = "short"
    elif need > have:
        verdict = "warn"
        detail += f"; one worker may get {format_count(largest_share)}"
    else:
        verdict = "ok"
        remedy = ""
    subject = "nginx's connection slots (workers x worker_connections)"
    return Check("nginx_worker_connections", subject, verdict, have, need, "slots", detail, remedy)


def _descriptors(config: NginxConfig, workers: int, plan: Plan, inherited: int | None) -> Check:
    need = math.ceil(_share(plan.connections, workers)) + _WORKER_DESCRIPTORS
    have = config.rlimit_nofile
    source = "set by worker_rlimit_nofile"
    if have is None:
        have = inherited
        source = "inherited from the running master (no worker_rlimit_nofile)"
    short: Verdict = "warn"
    if have is not None and math.ceil(plan.connections / workers) > have:
        short = "short"
    return limit(
        "nginx_nofile",
        "descriptors per nginx worker",
        "descriptors",
        have,
        need,
        short=short,
        source="there is no worker_rlimit_nofile, and the master's limit",
        detail=f"{source}; beyond it accept() fails with EMFILE, "
        "which only nginx's error log shows",
        remedy=f"worker_rlimit_nofile {need + need // 10} in nginx.conf, or more worker_processes",
    )


def _reuseport(config: NginxConfig, listen: Listen, workers: int, plan: Plan) -> Check:
    code = "nginx_reuseport"
    subject = "even spread over nginx's workers (reuseport)"
    if listen.reuseport:
        return Check(code, subject, "ok", detail="on")
    if workers == 1:
        return Check(code, subject, "ok", detail="one worker")
    # Without it the first worker awake accepts, which matters only if it cannot hold all.
    if plan.connections <= config.worker_connections * (1 - _REUSE_BELOW):
        detail = "off, but one worker has slots for all connections"
        return Check(code, subject, "ok", detail=detail)
    if listen.port:
        place = listen.place or listen.port
        restart = "and a restart (a reload may not suffice)"
        remedy = f"listen {place} reuseport in nginx.conf, {restart}"
    else:
        remedy = "more worker_connections in nginx.conf: a Unix socket has no reuseport"
    detail = "off: one worker may take most connections and run out of slots while others idle"
    return Check(code, subject, "warn", detail=detail, remedy=remedy)


def _backlog(listen: Listen, workers: int, plan: Plan, limits: Limits) -> Check:
    asked = _DEFAULT_BACKLOG
    if listen.backlog is not None and listen.backlog > 0:
        asked = listen.backlog
    queue = asked
    if limits.somaxconn is not None:
        queue = min(asked, limits.somaxconn)
    have = queue
    if listen.reuseport:
        # Each worker has a queue of its own.
        have = queue * workers
    # At most all connections wait at once.
    need = min(plan.connections, plan.asked_per_s * STALL_S)
    wanted = 2 ** math.ceil(math.log2(max(512.0, need)))
    remedy = f"listen {listen.place or listen.port} backlog={wanted} in nginx.conf"
    if limits.somaxconn is None or limits.somaxconn < wanted:
        remedy += f" and {limits.sudo}sysctl -w net.core.somaxconn={wanted}"
    return limit(
        "nginx_backlog",
        "nginx's accept queue (listen backlog)",
        "connections",
        have,
        need,
        short="warn",
        detail="; ".join(_of_backlog(listen, workers, plan, asked, queue)),
        remedy=remedy,
    )


def _of_backlog(listen: Listen, workers: int, plan: Plan, asked: int, queue: int) -> Iterator[str]:
    """What makes the backlog, in words. ``asked``: for a ``queue``, which the kernel may cut."""
    text = f"no backlog=, so {_DEFAULT_BACKLOG}"
    if listen.backlog is not None:
        text = f"backlog={listen.backlog}"
    if queue < asked:
        text = f"{text}, cut to {format_count(queue)} by somaxconn"
    yield text
    if listen.reuseport:
        yield f"{workers} listeners"
    yield f"{format_count(plan.asked_per_s)} connects/s while nginx accepts none for {STALL_S:g} s"


def _status(config: NginxConfig, plan: Plan, limits: Limits, configured: Configured) -> Check:
    code = "nginx_stub_status"
    subject = "nginx's count of connections (stub_status)"
    if plan.status_url is not None:
        return Check(code, subject, "ok", detail=f"--status-url {masked_page(plan.status_url)}")
    if configured.counted_by:
        return Check(code, subject, "ok", detail=f"{configured.counted_by} of --server-metrics")
    for page in status_pages(config, plan.targets):
        if page not in configured.silent_pages:
            detail = "it is read only with --status-url, so it is not compared with asyncli's"
            return Check(code, subject, "warn", detail=detail, remedy=_status_flags(page))
    if configured.silent_pages:
        page = configured.silent_pages[0]
        detail = f"{page.url} did not answer, so it is not compared with asyncli's"
        allow = "its location may need allow 127.0.0.1;"
        remedy = f"{_curl(page)} shows why ({allow}); then {_status_flags(page)}"
        return Check(code, subject, "warn", detail=detail, remedy=remedy)
    detail = f"{config.path} has no such page, so it is not compared with asyncli's"
    return Check(code, subject, "warn", detail=detail, remedy=_add_status_page(config, limits))


def _add_status_page(config: NginxConfig, limits: Limits) -> str:
    """The remedy of a configuration without a status page: what to write, and how to read it."""
    port = _free_port(config)
    location = "location = /nginx_status { stub_status; access_log off; }"
    block = f"server {{ listen 127.0.0.1:{port}; {location} }}"
    reload_it = f"{limits.sudo}nginx -c {shlex.quote(config.path)} -s reload"
    flags = f"--status-url http://127.0.0.1:{port}/nginx_status"
    return f"in http {{ }} of {config.path}: {block} then {reload_it} and {flags}"


def _free_port(config: NginxConfig) -> int:
    """A port for a status page at which no server block listens."""
    taken = set()
    for server in config.servers:
        for listen in server.listens:
            taken.add(listen.port)
    port = _STATUS_PORT
    while port in taken:
        port += 1
    return port


def _status_flags(page: StatusAddress) -> str:
    """The flags that read a page."""
    flags = f"--status-url {shlex.quote(page.url)}"
    if page.host:
        flags += f" --status-header {shlex.quote(f'Host: {page.host}')}"
    return flags


def _curl(page: StatusAddress) -> str:
    """The command that reads a page by hand."""
    header = ""
    if page.host:
        header = f" -H {shlex.quote(f'Host: {page.host}')}"
    if not page.url.startswith("unix:"):
        return f"curl{header} {shlex.quote(page.url)}"
    path, _, asked = page.url.removeprefix("unix:").partition(":")
    return f"curl --unix-socket {shlex.quote(path)}{header} http://localhost{asked or '/'}"
