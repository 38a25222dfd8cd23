"""What gave way when a count was not held: the sentence and the remedy of each mechanism of asyncli.analysis.bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncli.findings import Words
from asyncli.findings.losses import listed
from asyncli.units import format_bytes, format_count, format_many

# What others use that is worth a word, cores.
_OTHERS_CORES = 0.3
_ROOM_FOR_US = "leave more CPU to asyncli, ramp more slowly, or take a longer --keepalive"


def both_busy(server: str, cpus: float, busy: float, ours: float, theirs: float | None) -> Words:
    shares = f"asyncli used {ours:.1f}"
    if theirs is not None:
        others = busy - theirs - ours
        shares = f"{server} used {theirs:.1f}, asyncli {ours:.1f}"
        shares += f", and other programs {others:.1f}" if others >= _OTHERS_CORES else ""
    return Words(
        f"server and asyncli share the {cpus:.0f} CPUs of this host, and {busy:.1f} of them were busy: {shares}",
        "run asyncli on another host, ramp more slowly, or take a longer --keepalive",
    )


def late_beats(slow: str, lateness_us: float, latency_us: float) -> Words:
    late = f"asyncli itself sent it late: p99 {lateness_us / 1e3:,.0f} of {latency_us / 1e3:,.0f} ms"
    return Words(f"{slow}, and {late}", _ROOM_FOR_US)


def starved(what: str, connects: int) -> Words:
    remedy = {
        "descriptors": "raise the limit (ulimit -n), or leave --workers out",
        "local ports": "give more addresses of this host with --source, or more URLs",
    }[what]
    return Words(f"asyncli ran out of {what}: {format_count(connects)} connects found none", remedy)


def host_memory(who: str, least: float, before: float, took: Mapping[str, float], ours: bool) -> Words:
    shares = ", ".join(f"{taker} took {format_bytes(rise)}" for taker, rise in took.items() if rise > 0)
    evidence = f"{who} had {format_bytes(least)} of memory left, of {format_bytes(before)} before the first connect"
    remedy = (
        "run asyncli on another host, or where there is more memory"
        if ours
        else "give it more memory, or make a connection cheaper"
    )
    return Words(f"{evidence}: {shares}" if shares else evidence, remedy)


def memory_limit(server: str, limit: float, most: float, killed: float) -> Words:
    times = "one process" if killed == 1 else f"{format_count(killed)} processes"
    what = f"the kernel killed {times} of {server} for want of memory" if killed else f"{server} had no memory left"
    return Words(
        f"{what}: its control group may use {format_bytes(limit)}, and used {format_bytes(most)}",
        "raise its limit (systemd MemoryMax=, docker --memory), or make a connection cheaper",
    )


def not_handled(server: str, refused: float) -> Words:
    return Words(
        f"{server} accepted {format_count(refused)} connections and closed them at once: it had no slot left",
        "raise its limit on connections (nginx: worker_connections)",
    )


def sessions(server: str, most: float, limit: float) -> Words:
    return Words(
        f"{server} had {format_count(most)} sessions open, and its status page (slim) says that it may have "
        f"{format_count(limit)}",
        "raise maxconn in haproxy.cfg, of the frontend and global",
    )


def busy_workers(server: str, busy: float) -> Words:
    return Words(
        f"all {format_count(busy)} workers of {server} were busy to the end, and none was idle",
        "raise MaxRequestWorkers and ServerLimit (of processes or threads), or take the event MPM",
    )


def descriptors(server: str, most: float, limit: float) -> Words:
    return Words(
        f"a process of {server} had {format_count(most)} descriptors open, and may have {format_count(limit)}",
        "raise its limit (systemd LimitNOFILE=, ulimit -n, nginx: worker_rlimit_nofile)",
    )


def server_cpu(server: str, used: float, may_use: float, threads: float, slow: str) -> Words:
    of = "the one that its single thread can use" if threads == 1 else f"the {may_use:.0f} that it can use"
    return Words(
        f"{server} used {used:.2f} cores of {of}" + (f"; {slow}" if slow else ""),
        "give it more processes or threads, or more cores; or beat less often (--keepalive)",
    )


def listen_queue(host: str, count: float) -> Words:
    times = "once" if count == 1 else f"{format_count(count)} times"
    return Words(
        f"the listen queue of a program on {host} was full {times} (ListenOverflows), so who connected had to wait",
        "raise net.core.somaxconn and the server's backlog=, let it accept faster, or ramp more slowly (--ramp)",
    )


def never_arrived(server: str, timeouts: int, accepted: float, started: int, local: bool) -> Words:
    evidence = f"{format_count(timeouts)} connects got no answer, and {server} never saw them: by its status page it accepted "
    evidence += f"{format_count(accepted)} of {format_count(started)}"
    remedy = "see routes, firewalls and the load of what is between; ip -s link and nstat show drops"
    if local:
        return Words(evidence, remedy)
    return Words(
        f"{evidence}; lost on the way, or dropped by a full listen queue of its host, which is not seen from here",
        f"{remedy}; nstat -az TcpExtListenOverflows on its host tells of its queue",
    )


def not_connected(cause: str, count: int) -> Words:
    were, what, remedy = {
        "refused": ("was" if count == 1 else "were", " refused", "see that the server runs and listens there"),
        "unreachable": ("", "found no route, or were forbidden", "see routes and firewall between here and the server"),
        "connect_timeout": (
            "",
            "got no answer in time",
            "see whether the server accepts (its CPU, its backlog=), and the way to it",
        ),
    }[cause]
    return Words(f"{format_many(count, 'connect')} {were}{what}", remedy)


def errors(server: str, by_status: Mapping[int, int]) -> Words:
    return Words(
        f"{server} answered heartbeats with errors: {listed(by_status)}",
        "see its error log; of a proxy, that of what stands behind it",
    )


def slow(server: str, said: str, cores: float | None) -> Words:
    but = "" if cores is None else f", though {server} used {cores:.2f} cores: it waits for something, or the way to it does"
    return Words(f"{said}{but}", "see what its processes wait for: a lock, a disk, a backend, a limit on its rate")


def unknown(diagnosed: Sequence[str], held: int, asked: int, lost: int) -> Words:
    said = "; ".join(diagnosed) or f"{format_count(held)} of {format_count(asked)} were held, {lost} lost"
    return Words(f"{said}; nothing that was read says what gave way", "see the report of that step")
