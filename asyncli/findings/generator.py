"""Findings of the load generator: worker processes, client hosts of a cluster, and where they were
the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from asyncli.findings import Words, finding
from asyncli.findings.run import resume_with
from asyncli.model.records import UNRECORDED_S
from asyncli.model.units import (
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_share,
)

#: What to do about a bench with missing parts.
BENCH_AGAIN = (
    "find out what stopped or ended them, then run again; report it as a bug if it repeats"
)
_OURS = "they are asyncli's loss, not the server's"


def _worker(number: int, pid: int, host: str | None) -> str:
    if host:
        return f"worker {number} (pid {pid}) of asyncli on {host}"
    return f"worker {number} (pid {pid}) of asyncli"


def _find_out(resume: str | None) -> str:
    """``resume``: the command that continues the run, "" if its hold is over; None for a bench."""
    if resume is None:
        return BENCH_AGAIN
    find_out = "find out what stopped or ended them; report it as a bug if it repeats"
    if not resume:
        return find_out
    return f"{resume_with(resume)}; {find_out}"


def _silent(name: str, held: int, for_s: float) -> str:
    return (
        f"{name} has been silent for {for_s:.0f} s: "
        f"its {held:,} connections are not counted as held until it answers"
    )


@finding("generator_silent", "error")
def generator_silent(for_s: float, ending: bool, resume: str | None) -> Words:
    """No process of the generator answers, so the run ends. ``ending``: they were told to end."""
    did = "not ended within" if ending else "been silent for"
    return Words(f"asyncli's processes have {did} {for_s:.0f} s", _find_out(resume))


@finding("generator_failed", "error")
def generator_failed(why: str, resume: str | None) -> Words:
    """The generator's processes, or all its hosts, ended, and their connections with them."""
    return Words(why, _find_out(resume))


@finding("asyncli_failed", "error")
def asyncli_failed(what: str, why: str, resume: str | None) -> Words:
    """A part of asyncli raised an error, which is a bug. The run ended, because its numbers would
    be incomplete.
    """
    return Words(f"{what} failed: {why}", _find_out(resume))


@finding("drain_unfinished", "error")
def drain_unfinished(
    within_s: float, silent: Sequence[Mapping[str, int]], resume: str | None
) -> Words:
    """The generator did not close its connections in time. ``silent``: ``worker`` and ``pid`` of
    those that do not answer.
    """
    silent_ones = ""
    for process in silent:
        silent_ones += f"; worker {process['worker']} (pid {process['pid']}) is silent"
    return Words(
        f"asyncli did not close its connections within {within_s:.0f} s{silent_ones}",
        _find_out(resume),
    )


@finding("worker_silent", "error")
def worker_silent(worker: int, pid: int, host: str | None, held: int | None, for_s: float) -> Words:
    """A worker does not answer; its connections do not count as held. ``held`` null: in a bench,
    which lacks its share.
    """
    name = _worker(worker, pid, host)
    if held is None:
        return Words(f"{name} has been silent for {for_s:.0f} s: its share is missing", BENCH_AGAIN)
    remedy = f"if something stopped it, kill -CONT {pid}; else leave more CPU to asyncli"
    return Words(_silent(name, held, for_s), remedy)


@finding("worker_back", "info")
def worker_back(worker: int, pid: int, host: str | None, after_s: float) -> str:
    """A silent worker process answers again."""
    return f"{_worker(worker, pid, host)} answers again, after {after_s:.1f} s"


@finding("worker_lost", "error")
def worker_lost(worker: int, pid: int, host: str | None, held: int | None, how: str) -> Words:
    """A worker ended: a loss of asyncli, which makes a run invalid. ``held`` null: in a bench,
    without its last requests.
    """
    ended = f"{_worker(worker, pid, host)} {how}"
    if held is None:
        return Words(f"{ended}: its last requests are not counted", BENCH_AGAIN)
    remedy = "find out what ended it (the kernel's log names an out-of-memory kill), then run again"
    if not held:
        return Words(f"{ended} while it held no connection", remedy)
    return Words(f"{ended} while it held {format_many(held, 'connection')}: {_OURS}", remedy)


@finding("worker_replaced", "info")
def worker_replaced(worker: int, pid: int, host: str | None, opens_again: bool | None) -> str:
    """A new process replaces a worker that ended. ``opens_again``: it reopens its connections; None
    before the ramp.
    """
    name = f"worker {worker} on {host}" if host else f"worker {worker}"
    if opens_again is None:
        return f"{name} was replaced (pid {pid})"
    if opens_again:
        return f"{name} was replaced (pid {pid}) and reopens its connections at the ramp's pace"
    return f"{name} was replaced (pid {pid}) and reopens none of its connections"


@finding("worker_not_started", "error", "see 'asyncli check' for what limits processes")
def worker_not_started(worker: int, why: str) -> str:
    """The share of a lost host could not be opened here, because no process could be started."""
    return (
        f"worker {worker} of a lost host cannot be started: {why}; its connections are not opened"
    )


@finding("resumed", "warning")
def resumed(
    from_s: float, after_s: float, phase: str | None, held: int, holds: bool, ended_by: str
) -> Words:
    """The run was interrupted and resumed. Its connections ended with its processes; no fit
    includes the gap. The last two seconds before it may not be in the run's file. ``held``: how
    many ended; ``from_s``: the last instant in its file.
    """
    where = f"in its {phase}" if phase else "before its baseline"
    lost = ""
    if held:
        lost = f"; the {held:,} connections that it held were lost with asyncli's own processes"
    unrecorded = format_duration(min(UNRECORDED_S, after_s))
    then = "the hold continues" if holds else "the run starts again with the baseline"
    where_to_look = ended_by or "the kernel's log, the journal, a reboot"
    return Words(
        f"the run was interrupted {where}, at {format_clock(from_s)} or up to "
        f"{unrecorded} later, and resumed at "
        f"{format_clock(from_s + after_s)}{lost}; {then} "
        "and the gap is excluded from every fit and from the server's counters",
        f"see what ended it: {where_to_look}",
    )


@finding("cluster", "info")
def cluster(hosts: Mapping[str, int], processes: int, left_out: Mapping[str, int]) -> str:
    """Which hosts open the connections. ``hosts``: the share of each; ``left_out``: hosts with too
    little room, and how much.
    """
    if left_out:
        return (
            f"{format_many(len(hosts), 'host')} with {format_many(processes, 'process')} "
            f"open the connections: {_each(hosts)}; "
            f"left out, because they have too little room: {_each(left_out)}"
        )
    return (
        f"{format_many(len(hosts), 'host')} with {format_many(processes, 'process')} "
        f"open the connections: {_each(hosts)}"
    )


def _each(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_count(count)}" for name, count in counts.items())


@finding(
    "cluster_open",
    "warning",
    "use tls:// with certificates, or a network of only these hosts (docs/cluster.md)",
)
def cluster_open(scheduler: str) -> str:
    """A Dask scheduler without TLS lets anyone who can reach it run programs on every host."""
    return (
        f"the scheduler at {scheduler} has no TLS: anyone who can reach it can run programs on "
        "all its hosts"
    )


@finding("cluster_memory", "info")
def cluster_memory(ends: int | None, agent: bool) -> Words:
    """The sampled host has only some of the run's connections, so its memory is left out."""
    why = (
        "neither the server nor a client is on" if ends == 0 else "only some of the clients are on"
    )
    where = "this host"
    remedy = "start asyncli on the server's host, or on its own host with an agent on the server's"
    if agent:
        where = "the server's host"
        remedy = "leave the Dask worker on the server's host out"
    return Words(f"kernel and whole-host memory are left out: {why} {where}", remedy)


@finding("cluster_clock", "warning", "see that NTP synchronises the clocks of all hosts")
def cluster_clock(host: str, drift_s: float) -> str:
    """A client host's clock drifts from the session's, which shifts its ticks against those of
    other hosts.
    """
    return (
        f"the clock of {host} has drifted by {1000 * drift_s:+.0f} ms since the start, which "
        "shifts its ticks"
    )


@finding("host_silent", "error", "see its network, its Dask worker, and asyncli's processes on it")
def host_silent(host: str, held: int, for_s: float) -> str:
    """A client host does not answer. Its connections are not counted as held until it does."""
    return _silent(host, held, for_s)


@finding("host_back", "info")
def host_back(host: str, after_s: float) -> str:
    """A silent client host answers again."""
    return f"{host} answers again, after {after_s:.1f} s"


@finding(
    "host_lost",
    "error",
    "find out what ended it (its Dask worker's log, the kernel's log, its network), then run again",
)
def host_lost(host: str, why: str, held: int, share: str) -> Words:
    """A client host ended. The loss of its connections is asyncli's own. ``share``: which hosts
    open them now ("": none).
    """
    lost = f"{held:,} connections: {_OURS}" if held else "none"
    is_error = held > 0 or bool(share)
    return Words(
        f"{host} {why} while it held {lost}{share}",
        severity="error" if is_error else "warning",
    )


@finding(
    "hosts_all_lost",
    "error",
    "see that the scheduler runs, and start a Dask worker on each host again",
)
def hosts_all_lost(why: str, within_s: float | None, for_s: float) -> str:
    """No client host is left; the run waits for one. ``for_s``: how long; ``within_s``: all were
    last heard within this time.
    """
    if within_s is None:
        return f"every host is lost; {why}; waiting {format_duration(for_s)} for a host"
    return (
        f"every host is lost; {why}, and all were last heard within {within_s:.1f} s: "
        "looks like the network here, or of the scheduler; "
        f"waiting {format_duration(for_s)} for a host"
    )


@finding("share_taken", "info")
def share_taken(count: int, how: str, by: str) -> str:
    """Other hosts open the connections of a lost host."""
    return f"{count:,} connections of lost hosts are {how}: {by}"


@finding("host_joined", "info")
def host_joined(host: str, count: int, reopens: bool) -> str:
    """A client host joined during the run."""
    if reopens:
        return f"{host} joined and opens {count:,} connections of lost hosts"
    return f"{host} joined and continues with {count:,} connections of lost hosts"


# What lateness in the ramp casts doubt on: the connections come at another pace, and some wait
# before they are opened. A slope of memory over the connections held does not depend on when they
# came.
_DOUBTS_PACE = (
    "its pace and the times of connecting are not the planned ones; memory per connection does "
    "not depend on it"
)


def _ramp(late_s: float | None, bound_s: float, per_s: float | None, asked_per_s: float) -> str:
    if late_s is not None:
        return f"the ramp ran late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)"
    return f"the ramp reached {per_s or 0.0:,.0f} connections/s of {asked_per_s:,.0f}"


PartOfConnect = Literal["tcp", "tls", "protocol"]
_SLOWER = "ramp more slowly (--ramp N/s), or give more CPUs to both ends"
_WAITS: dict[PartOfConnect, tuple[str, str]] = {
    "tcp": (
        "the server to accept",
        "raise net.core.somaxconn and the server's backlog=, or ramp more slowly (--interval)",
    ),
    "tls": ("TLS's handshake", _SLOWER),
    "protocol": ("the protocol's handshake", _SLOWER),
}


@finding("ramp_held_back", "warning")
def ramp_held_back(
    late_s: float | None,
    bound_s: float,
    per_s: float | None,
    asked_per_s: float,
    pending: float,
    waited_in: PartOfConnect,
) -> Words:
    """The ramp was late or slow while connects waited for the server to accept, or for a handshake
    that took longer than the rest of a connect. Its pace is in doubt, and nothing else. ``late_s``:
    its p99; ``pending``: connects of a worker that waited, ``waited_in`` which step.
    """
    step, remedy = _WAITS[waited_in]
    waited = f"{pending:,.0f} connects per worker waited for {step}"
    return Words(f"{_ramp(late_s, bound_s, per_s, asked_per_s)}; {waited}; {_DOUBTS_PACE}", remedy)


@finding("ramp_late", "warning", "ramp more slowly (--interval), or leave more CPU to asyncli")
def ramp_late(late_s: float | None, bound_s: float, per_s: float | None, asked_per_s: float) -> str:
    """The ramp was late or slow, and not because of the server. Its pace is in doubt, and connects
    that failed in it, which make the run invalid; what is held, memory per connection and the
    answers of the hold are not. ``late_s``: its p99.
    """
    return f"{_ramp(late_s, bound_s, per_s, asked_per_s)}; {_DOUBTS_PACE}"


@finding(
    "generator_saturated_beats",
    "error",
    "use more --workers, a longer --keepalive or fewer --connections",
)
def saturated_beats(late_s: float, bound_s: float) -> str:
    """Heartbeats were so late (p99) that idle times are not the planned ones: asyncli was the
    limit.
    """
    return f"heartbeats were late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)"


_QUIET_HOST = "see that this host neither swaps nor has another heavy load"


@finding("generator_saturated_turn", "error", _QUIET_HOST)
def saturated_turn(for_s: float, bound_s: float) -> str:
    """Workers were stopped for too long in total, or for longer than a heartbeat may take: asyncli
    was the limit.
    """
    return f"a worker was stopped for {for_s:.1f} s (bound {bound_s:.0f} s)"


@finding("generator_stood_still", "warning", _QUIET_HOST)
def stood_still(for_s: float, until_s: float, share: float, bound: float) -> str:
    """A worker was stopped for a moment, in a run that was otherwise on time. ``share`` of ramp and
    hold, and its ``bound``.
    """
    return (
        f"a worker was stopped for {for_s:.1f} s, until {format_clock(until_s)}: latencies then "
        f"may be asyncli's; it was stopped for {100 * share:.2g} % of ramp and hold (bound "
        f"{100 * bound:g} %)"
    )


@finding(
    "generator_saturated_cpu",
    "error",
    "give it more cores, ramp more slowly, or use a longer --keepalive",
)
def saturated_cpu(share: float, cores: int, phase: str, bound: float) -> Words:
    """The generator used nearly all of its cores, so its work was delayed: it was the limit. A
    warning if it was in the ramp only, whose pace alone is in doubt then.
    """
    used = (
        f"asyncli used {format_share(share)} of {cores} cores in the {phase} "
        f"(bound {format_share(bound)})"
    )
    if phase == "ramp":
        return Words(f"{used}; {_DOUBTS_PACE}", severity="warning")
    return Words(used)
