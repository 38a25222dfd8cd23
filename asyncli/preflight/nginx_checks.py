"""Checks a plan against an nginx's configuration: which directives close long-lived connections, and when.

Pure. The rules are nginx's (nginx.org, ngx_http_request.c and ngx_connection.c of 1.22).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from asyncli.model.plan import Plan
from asyncli.model.private_values import masked_login
from asyncli.model.records import Check
from asyncli.model.template import OpenTemplate
from asyncli.model.units import format_count, format_duration, format_many, shown, tenth_more
from asyncli.model.values import Target
from asyncli.preflight.configured import Configured
from asyncli.preflight.host_checks import STALL_S, Verdict, limit, longest_gap_s, mean_gap_s, oldest_s
from asyncli.preflight.host_limits import Limits
from asyncli.preflight.nginx_choice import StatusAddress, listen_for, server_for, status_pages
from asyncli.preflight.nginx_config import Listen, NginxConfig, Timers
from asyncli.preflight.nginx_ways import KindOf, timers_for
from asyncli.preflight.patterns import Undecided

# nginx's NGX_LISTEN_BACKLOG on Linux.
_DEFAULT_BACKLOG = 511
# At this share of free slots or less, an accept closes the clients that have been idle longest.
_REUSE_BELOW = 1 / 16
# reuseport's hash gives a binomial share: fewer than one in a billion are six deviations above the mean.
_DEVIATIONS = 6.0
# Listeners, the channel to the master, logs, epoll and standard descriptors of a worker.
_WORKER_DESCRIPTORS = 32
# With so many expected losses the probability of none is e**-20: certain enough to refuse.
_CERTAIN = 20.0
# A hold until stopped counts as thirty days.
_FAR_S = 30 * 86400.0
_STATUS_PORT = 8081


def nginx_checks(
    config: NginxConfig, plan: Plan, limits: Limits, configured: Configured, addresses: Mapping[int, Sequence[str]],
    kind_of: KindOf,
) -> list[Check]:  # fmt: skip
    """One check for each directive that a soak depends on; with several URLs or addresses the worst of each. ``limits``: of the
    host. ``addresses``: those that the plan's targets have, by their number. ``kind_of``: looks up nginx's files.
    """
    worst: dict[str, Check] = {}
    for number, target in enumerate(plan.targets):
        for address in addresses.get(number) or [target.host]:
            for check in _target_checks(config, plan, target, address, limits, configured, kind_of):
                before = worst.get(check.code)
                if before is None or _RANK[check.verdict] > _RANK[before.verdict]:
                    worst[check.code] = check
    # An nginx that listens at no target does not count these connections.
    return [*worst.values(), *([_status(config, plan, limits, configured)] if worst.keys() != {"nginx_listen"} else [])]


def _target_checks(
    config: NginxConfig, plan: Plan, target: Target, address: str, limits: Limits, configured: Configured, kind_of: KindOf
) -> Iterator[Check]:
    path = "" if target.port else target.host
    asked = _asked_host(plan, target.name if target.asked else target.host)
    server = server_for(config, path or address, target.port, asked)
    listen = listen_for(config, path or address, target.port)
    if server is None or listen is None:
        where = f"unix:{path}" if path else f"port {target.port}"
        what, detail = f"a server block that listens on {where}", f"{config.path} has none: its limits are unknown"
        yield Check("nginx_listen", what, "unknown", detail=detail, remedy="name the nginx that serves it with --server-pid")
        return
    if isinstance(server, Undecided):
        yield _undecided(server, config)
        yield from _capacity_checks(config, listen, plan, limits, configured)
        return
    if listen.proxy_protocol != (plan.proxy_protocol is not None):
        what, remedy = "proxy_protocol of nginx's listen", "write --proxy-protocol v1 or v2"
        if not listen.proxy_protocol:
            remedy = f"leave --proxy-protocol out, or listen {listen.place or listen.port} proxy_protocol in nginx.conf"
        detail = "only one of nginx and the plan uses it, so no request succeeds"
        yield Check("nginx_proxy_protocol", what, "short", detail=detail, remedy=remedy)
    if not plan.upgrades:
        # Of connection 0; a placeholder for the plan's data stays.
        path_asked = OpenTemplate(target.path).fill({"n": 0, "random": "0" * 6})
        timers = timers_for(server, path_asked, kind_of)
        if isinstance(timers, Undecided):
            yield _undecided(timers, config)
        else:
            yield from _timeout_checks(timers, plan)
    yield from _capacity_checks(config, listen, plan, limits, configured)


def _undecided(undecided: Undecided, config: NginxConfig) -> Check:
    """No check of the timers: they are those of the server block and the location that nginx chooses."""
    what = "the server block and location of the URL"
    detail = f"asyncli cannot tell whether {shown(undecided.pattern)} of {config.path} matches, so nginx's timers are unknown"
    return Check("nginx_pattern", what, "unknown", detail=detail, remedy="compare its timers with the plan yourself")


_RANK: dict[str, int] = {"ok": 0, "unknown": 1, "warn": 2, "short": 3}


def _asked_host(plan: Plan, host: str) -> str:
    """The name in the Host header: the plan's own header, else the URL's."""
    for header in plan.headers:
        name, _, value = header.partition(":")
        if name.lower() == "host":
            return value.strip().rpartition(":")[0] or value.strip() if value.count(":") == 1 else value.strip()
    return host


def _timeout_checks(timers: Timers, plan: Plan) -> Iterator[Check]:
    if plan.streams:
        detail = "nginx resets a stream whose body it cannot send for this time, and held streams do not read theirs"
        yield _against_age("send_timeout", timers.send_timeout_s, "stream", detail, plan)
    elif plan.requests != "heartbeats":
        detail = "nginx closes an HTTP/2 connection without a request after this time, and pings are no requests"
        have, instead = timers.client_header_timeout_s, "--h2-heartbeat head, or "
        yield _against_age("client_header_timeout", have, "connection", detail, plan, instead)
    if plan.requests != "heartbeats":
        return
    yield _keepalive_timeout(timers, plan)
    yield _header_timeout(timers, plan)
    yield _keepalive_requests(timers, plan)
    if timers.keepalive_time_s is not None:
        yield _keepalive_time(timers.keepalive_time_s, plan)


def _against_age(directive: str, have: float, of: str, detail: str, plan: Plan, instead: str = "") -> Check:
    age = oldest_s(plan)
    need = _FAR_S if age is None else age
    remedy = f"{instead}{directive} {math.ceil(need) + 60}s in nginx.conf"
    what = f"{directive} against the age of the oldest {of}"
    return limit(f"nginx_{directive}", what, "s", have, need, detail=detail, remedy=remedy)


def _keepalive_timeout(timers: Timers, plan: Plan) -> Check:
    have, (need, detail) = timers.keepalive_timeout_s, _longest_pause(plan)
    remedy, fits = f"keepalive_timeout {math.ceil(need)}s in nginx.conf", math.floor(2 * (have - plan.timeout_s))
    remedy += f", or --keepalive {fits}: gaps are up to half of it" if fits >= 2 else ""
    short: Verdict = "warn"
    if have == 0:
        short, detail = "short", "0 turns keep-alive off"
    elif have < need:
        short, detail = _closed(plan, have, detail)
    what = "keepalive_timeout against the longest gap between heartbeats"
    return limit("nginx_keepalive_timeout", what, "s", have, need, short=short, detail=detail, remedy=remedy)


def _header_timeout(timers: Timers, plan: Plan) -> Check:
    have, sleeps = timers.client_header_timeout_s, plan.first_beat == "sleep"
    short: Verdict = "warn"
    need, detail = _longest_pause(plan) if sleeps else (plan.timeout_s, "the first heartbeat is sent at once")
    if sleeps and have < need:
        short, detail = _closed(plan, have, detail, first=True)
    remedy = f"client_header_timeout {math.ceil(need)}s in nginx.conf" + (", or --first-beat now" if sleeps else "")
    what = "client_header_timeout against the first heartbeat"
    return limit("nginx_client_header_timeout", what, "s", have, need, short=short, detail=detail, remedy=remedy)


def _longest_pause(plan: Plan) -> tuple[float, str]:
    """The longest time (s) from nginx's answer to a heartbeat, which may be late by the timeout, and its parts in words."""
    age, gap = oldest_s(plan), longest_gap_s(plan)
    if age is not None and age < gap + plan.timeout_s:
        return age, f"the run ends when its oldest connection is {format_duration(age)} old"
    apart, late = format_duration(gap), format_duration(plan.timeout_s)
    return gap + plan.timeout_s, f"heartbeats come up to {apart} apart (half of --keepalive), and up to {late} late"


def _closed(plan: Plan, have: float, detail: str, *, first: bool = False) -> tuple[Verdict, str]:
    """The verdict on a timer of ``have`` s that starts at each answer (``first``: only at the connect), and ``detail`` with what
    it closes."""
    gap, age, each = longest_gap_s(plan), oldest_s(plan), max(1.0, have)
    if have >= gap:
        late = f"more than {format_duration(have - gap)} late" if have > gap else "late"
        return "warn", f"{detail}; a heartbeat that is {late} finds its connection closed"
    # Gaps are uniform in [1, keepalive/2].
    odds = min(1.0, (gap - have) / max(gap - 1, 1e-9))
    share = odds if first else 1.0
    if age is not None:
        batches, slept = plan.schedule.batches, mean_gap_s(plan) if plan.first_beat == "sleep" and not first else 0.0
        ages = [age - plan.schedule.due_s(j) - slept - have for j in range(0, batches, math.ceil(batches / 100))]
        # The exponent: how many gaps began by then, the renewal function of uniform gaps.
        share = sum(1 - (1 - odds) ** (1 if first else max(1, 2 / 3 + 2 * x / (1 + each))) for x in ages if x > 0) / len(ages)
    lost = format_count(int(float(f"{share * plan.connections:.2g}")))
    detail += f"; {100 * odds:.3g} % of the gaps are longer than {format_duration(have)}, and nginx closes their connections: "
    detail += f"about {lost} of {format_count(plan.connections)} {'in the end' if age is None else 'by the end of the hold'}"
    return "short" if (1 - share) ** plan.connections <= math.exp(-_CERTAIN) else "warn", detail


def _keepalive_requests(timers: Timers, plan: Plan) -> Check:
    what = "keepalive_requests against the heartbeats of one connection"
    have, age, mean = timers.keepalive_requests, oldest_s(plan), mean_gap_s(plan)
    # A lifetime is a sum of gaps uniform in [1, keepalive/2].
    life_s = max(0, have - 1) * mean
    deviation_s = math.sqrt(max(0, have - 1) / 12) * (longest_gap_s(plan) - 1)
    # The shortest of N such lifetimes; never below one second a gap.
    shortest_s = max(0.0, have - 1.0, life_s - _DEVIATIONS * deviation_s)
    detail = f"{format_count(have)} requests, {format_duration(mean)} apart on average, take {format_duration(life_s)}"
    if have == 0:
        detail, shortest_s = "0 turns keep-alive off", 0.0
    need = None if age is None else 1 + math.ceil(age / mean)
    remedy = f"keepalive_requests {max(10_000_000, 10 * (need or have))} in nginx.conf"
    verdict: Verdict = "warn"
    if age is None:
        detail += f"; held until stopped, so the first connections close {format_duration(shortest_s)} after the start"
        remedy += ", or a --hold"
    else:
        detail += f"; the oldest connection reaches {format_duration(age)}"
        if age > life_s and plan.connections >= _CERTAIN:
            verdict = "short"
    if shortest_s > (_FAR_S if age is None else age):
        verdict, remedy = "ok", ""
    return Check("nginx_keepalive_requests", what, verdict, have, need, "requests", detail, remedy)


def _keepalive_time(have: float, plan: Plan) -> Check:
    what = "keepalive_time against the age of the oldest connection"
    age = oldest_s(plan)
    detail = "nginx closes a connection at its first request past this age, so those opened together close together"
    hours = 1000
    verdict: Verdict = "warn"
    if age is None:
        detail = f"held until stopped, so losses begin {format_duration(have)} after the start; {detail}"
    else:
        hours = max(hours, math.ceil(age / 360))
        # Within one more gap the first batch sends that request.
        verdict = "short" if age > have + longest_gap_s(plan) + plan.timeout_s else "warn"
    remedy = f"keepalive_time {hours}h in nginx.conf{', or a --hold' if age is None else ''}"
    if have > (_FAR_S if age is None else age):
        verdict, remedy = "ok", ""
    return Check("nginx_keepalive_time", what, verdict, have, age, "s", detail, remedy)


def _capacity_checks(config: NginxConfig, listen: Listen, plan: Plan, limits: Limits, configured: Configured) -> Iterator[Check]:
    workers = config.workers if config.workers is not None else limits.cpus
    if workers is None:
        detail = "worker_processes is auto and the number of CPUs could not be read"
        yield Check("nginx_worker_connections", "nginx's connection slots", "unknown", detail=detail)
        return
    workers = max(1, workers)
    yield _slots(config, workers, plan)
    yield _descriptors(config, workers, plan, configured.inherited_nofile)
    yield _reuseport(config, listen, workers, plan)
    yield _backlog(listen, workers, plan, limits)


def _share(connections: int, workers: int) -> float:
    """The most connections that one worker gets if the kernel distributes them by a hash."""
    mean = connections / workers
    return mean if workers == 1 else mean + _DEVIATIONS * math.sqrt(mean)


def _slots(config: NginxConfig, workers: int, plan: Plan) -> Check:
    what = "nginx's connection slots (workers x worker_connections)"
    have, most = workers * config.worker_connections, _share(plan.connections, workers)
    # nginx closes only idle HTTP connections, not upgraded ones or streams.
    free = 0.0 if plan.upgrades else _REUSE_BELOW
    # Any worker may get the largest share.
    need = max(tenth_more(plan.connections), workers * math.ceil(most / (1 - free)))
    detail = f"{format_many(workers, 'worker')} x {format_count(config.worker_connections)}"
    detail += "" if plan.upgrades else "; nginx closes idle clients when a sixteenth or less is free"
    remedy = f"worker_connections {tenth_more(most) + 16} in nginx.conf"
    verdict: Verdict = "ok"
    if plan.connections > have * (1 - free):
        verdict = "short"
    elif need > have:
        verdict = "warn"
        detail += f"; one worker may get {format_count(most)}"
    return Check("nginx_worker_connections", what, verdict, have, need, "slots", detail, remedy if verdict != "ok" else "")


def _descriptors(config: NginxConfig, workers: int, plan: Plan, inherited: int | None) -> Check:
    need = math.ceil(_share(plan.connections, workers)) + _WORKER_DESCRIPTORS
    have, source = config.rlimit_nofile, "set by worker_rlimit_nofile"
    if have is None:
        have, source = inherited, "inherited from the running master (no worker_rlimit_nofile)"
    short: Verdict = "short" if have is not None and math.ceil(plan.connections / workers) > have else "warn"
    return limit(
        "nginx_nofile", "descriptors per nginx worker", "descriptors", have, need, short=short,
        source="there is no worker_rlimit_nofile, and the master's limit",
        detail=f"{source}; beyond it accept() fails with EMFILE, which only nginx's error log shows",
        remedy=f"worker_rlimit_nofile {need + need // 10} in nginx.conf, or more worker_processes",
    )  # fmt: skip


def _reuseport(config: NginxConfig, listen: Listen, workers: int, plan: Plan) -> Check:
    code, what = "nginx_reuseport", "even spread over nginx's workers (reuseport)"
    if listen.reuseport or workers == 1:
        return Check(code, what, "ok", detail="on" if listen.reuseport else "one worker")
    # Without it the first worker awake accepts, which matters only if it cannot hold all.
    if plan.connections <= config.worker_connections * (1 - _REUSE_BELOW):
        return Check(code, what, "ok", detail="off, but one worker has slots for all connections")
    remedy = f"listen {listen.place or listen.port} reuseport in nginx.conf, and a restart (a reload may not suffice)"
    remedy = remedy if listen.port else "more worker_connections in nginx.conf: a Unix socket has no reuseport"
    detail = "off: one worker may take most connections and run out of slots while others idle"
    return Check(code, what, "warn", detail=detail, remedy=remedy)


def _backlog(listen: Listen, workers: int, plan: Plan, limits: Limits) -> Check:
    asked = listen.backlog if listen.backlog is not None and listen.backlog > 0 else _DEFAULT_BACKLOG
    each = asked if limits.somaxconn is None else min(asked, limits.somaxconn)
    have = each * (workers if listen.reuseport else 1)
    # At most all connections wait at once.
    need = min(plan.connections, plan.asked_per_s * STALL_S)
    detail = f"backlog={listen.backlog}" if listen.backlog is not None else f"no backlog=, so {_DEFAULT_BACKLOG}"
    detail += f", cut to {format_count(each)} by somaxconn" if each < asked else ""
    detail += f"; {workers} listeners" if listen.reuseport else ""
    detail += f"; {format_count(plan.asked_per_s)} connects/s while nginx accepts none for {STALL_S:g} s"
    wanted = 2 ** math.ceil(math.log2(max(512.0, need)))
    remedy = f"listen {listen.place or listen.port} backlog={wanted} in nginx.conf"
    if limits.somaxconn is None or limits.somaxconn < wanted:
        remedy += f" and {limits.sudo}sysctl -w net.core.somaxconn={wanted}"
    what = "nginx's accept queue (listen backlog)"
    return limit("nginx_backlog", what, "connections", have, need, short="warn", detail=detail, remedy=remedy)


def _status(config: NginxConfig, plan: Plan, limits: Limits, configured: Configured) -> Check:
    code, what = "nginx_stub_status", "nginx's count of connections (stub_status)"
    if plan.status_url is not None:
        return Check(code, what, "ok", detail=f"--status-url {masked_login(plan.status_url)}")
    so = "so it is not compared with asyncli's"
    for page in status_pages(config, plan.targets):
        if page not in configured.silent_pages:
            detail = f"it is read only with --status-url, {so}"
            return Check(code, what, "warn", detail=detail, remedy=_status_flags(page))
    for page in configured.silent_pages:
        remedy = f"{_curl(page)} shows why (its location may need allow 127.0.0.1;); then {_status_flags(page)}"
        return Check(code, what, "warn", detail=f"{page.url} did not answer, {so}", remedy=remedy)
    taken = {listen.port for server in config.servers for listen in server.listens}
    port = next(port for port in range(_STATUS_PORT, 65_536) if port not in taken)
    block = f"server {{ listen 127.0.0.1:{port}; location = /nginx_status {{ stub_status; access_log off; }} }}"
    reload_it = f"{limits.sudo}nginx -c {shlex.quote(config.path)} -s reload"
    remedy = f"in http {{ }} of {config.path}: {block} then {reload_it} and --status-url http://127.0.0.1:{port}/nginx_status"
    return Check(code, what, "warn", detail=f"{config.path} has no such page, {so}", remedy=remedy)


def _status_flags(page: StatusAddress) -> str:
    """The flags that read a page."""
    host = f" --status-header {shlex.quote(f'Host: {page.host}')}" if page.host else ""
    return f"--status-url {shlex.quote(page.url)}{host}"


def _curl(page: StatusAddress) -> str:
    """The command that reads a page by hand."""
    host = f" -H {shlex.quote(f'Host: {page.host}')}" if page.host else ""
    if page.url.startswith("unix:"):
        path, _, asked = page.url.removeprefix("unix:").partition(":")
        return f"curl --unix-socket {shlex.quote(path)}{host} http://localhost{asked or '/'}"
    return f"curl{host} {shlex.quote(page.url)}"
