"""Findings of whoever opens the connections: worker processes, and client hosts of a cluster; and where they were the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncli.findings import Words, finding
from asyncli.findings.run import go_on
from asyncli.units import format_clock, format_count, format_duration, format_many


def _worker(number: int, pid: int, host: str | None) -> str:
    return f"worker {number} (pid {pid}) of the generator{f' on {host}' if host else ''}"


#: What to do about a bench that is not whole.
BENCH_AGAIN = "find out what stopped or ended them, then run again; if it repeats, report it as a bug"


def _find_out(resume: str | None) -> str:
    """``resume``: the command that goes on with the run, "" where its hold is over; None for a bench."""
    if resume is None:
        return BENCH_AGAIN
    find_out = "find out what stopped or ended them: a bug, if it repeats"
    return f"{go_on(resume)}; {find_out}" if resume else find_out


@finding("generator_silent", "error")
def generator_silent(for_s: float, ending: bool, resume: str | None) -> Words:
    """No process of the generator says anything, so what it holds is not known and the run ends. ``ending``: it was told to
    end.
    """
    said = "come to an end within" if ending else "said nothing for"
    return Words(f"the generator's processes have {'not ' if ending else ''}{said} {for_s:.0f} s", _find_out(resume))


@finding("generator_failed", "error")
def generator_failed(why: str, resume: str | None) -> Words:
    """The generator's processes, or all its hosts, are gone, so nobody holds the connections any more."""
    return Words(why, _find_out(resume))


@finding("asyncli_failed", "error")
def asyncli_failed(what: str, why: str, resume: str | None) -> Words:
    """A part of asyncli raised an error, which is a bug: the run ends, as its numbers would not be whole."""
    return Words(f"{what} failed: {why}", _find_out(resume))


@finding("drain_unfinished", "error")
def drain_unfinished(within_s: float, silent: Sequence[Mapping[str, int]], resume: str | None) -> Words:
    """The generator did not close its connections in time. ``silent``: the ``worker`` and ``pid`` of those that say nothing."""
    each = "".join(f"; worker {one['worker']} (pid {one['pid']}) is silent" for one in silent)
    return Words(f"the generator has not closed its connections within {within_s:.0f} s{each}", _find_out(resume))


@finding("worker_silent", "error")
def worker_silent(worker: int, pid: int, host: str | None, held: int | None, for_s: float) -> Words:
    """A process of the generator says nothing. What it held may live or not, and is counted as not held until it speaks again.
    ``held`` is null for a bench, which ends without its share.
    """
    if held is None:
        return Words(f"{_worker(worker, pid, host)} has said nothing for {for_s:.0f} s: its share is missing", BENCH_AGAIN)
    return Words(
        f"{_worker(worker, pid, host)} has said nothing for {for_s:.0f} s: the {held:,} connections that it held are counted as "
        "not held until it speaks again",
        f"if something stopped it, kill -CONT {pid}; else leave more CPU to asyncli",
    )


@finding("worker_back", "info")
def worker_back(worker: int, pid: int, host: str | None, after_s: float) -> Words:
    """A process of the generator that was silent speaks again."""
    return Words(f"{_worker(worker, pid, host)} speaks again, after {after_s:.1f} s")


@finding("worker_lost", "error")
def worker_lost(worker: int, pid: int, host: str | None, held: int | None, how: str) -> Words:
    """A process of the generator ended. Its connections are asyncli's own loss, which makes a run invalid. ``held`` is null for a
    bench, which does not count what that process asked last.
    """
    if held is None:
        return Words(f"{_worker(worker, pid, host)} {how}: what it asked since its last word is not counted", BENCH_AGAIN)
    return Words(
        f"{_worker(worker, pid, host)} {how} while it held {held:,} connections: they are the generator's loss, not the server's",
        "find out who ended it (the kernel's log names an out-of-memory kill), then run again",
    )


@finding("worker_replaced", "info")
def worker_replaced(worker: int, pid: int, host: str | None, opens_again: bool | None) -> Words:
    """Another process is in the place of one that ended. ``opens_again``: whether with its connections; None before the ramp."""
    again = {True: "its connections again as fast as the ramp", False: "none of its connections again"}
    then = f", which opens {again[opens_again]}" if opens_again is not None else ""
    return Words(f"worker {worker}{f' on {host}' if host else ''} has another process (pid {pid}){then}")


@finding("worker_not_started", "error")
def worker_not_started(worker: int, why: str) -> Words:
    """The share of a lost host finds no process here to open it."""
    return Words(
        f"worker {worker} of a lost host cannot be started: {why}; nobody opens its connections",
        "asyncli check says what limits processes",
    )


@finding("resumed", "warning")
def resumed(from_s: float, after_s: float, phase: str | None, held: int, holds: bool, ended_by: str) -> Words:
    """The run was cut off and goes on in its file. What it ``held`` ended with its own processes; the gap is in no fit."""
    where = f"in its {phase}" if phase else "before its baseline"
    lost = f"; the {held:,} connections that it held were lost with asyncli's own processes" if held else ""
    then = "it holds on" if holds else "it begins again with the baseline"
    return Words(
        f"the run was cut off {where}, at {format_clock(from_s)}, and resumed {format_duration(after_s)} later{lost}; {then}, "
        "and nothing is fitted across the gap, nor are the server's counters compared over it",
        f"see what it said then, and before that: {ended_by}"
        if ended_by
        else "see what ended it then: the kernel's log, the journal, a reboot",
    )


@finding("cluster", "info")
def cluster(hosts: Mapping[str, int], processes: int, left_out: Mapping[str, int]) -> Words:
    """Who opens the connections. ``hosts``: the share of each; ``left_out``: how many each of those has room for."""
    each = ", ".join(f"{name} {format_count(count)}" for name, count in hosts.items())
    said = f"the connections are opened by {format_many(len(hosts), 'host')}, in {format_many(processes, 'process')}: {each}"
    if left_out:
        little = ", ".join(f"{name} {format_count(count)}" for name, count in left_out.items())
        said += f"; left out, with room for less than the share of a process: {little}"
    return Words(said)


@finding("cluster_open", "warning")
def cluster_open(scheduler: str) -> Words:
    """A Dask scheduler without TLS runs what anybody sends it, on every host."""
    return Words(
        f"the scheduler at {scheduler} speaks without TLS: whoever reaches it can run programs on every host of it",
        "use tls:// with certificates, or a network that only these hosts are on (docs/cluster.md)",
    )


@finding("cluster_memory", "info")
def cluster_memory(ends: int | None, agent: bool) -> Words:
    """The host that is sampled has neither all nor none of the run's ends on it, so its memory is not the run's."""
    where = "the server's host" if agent else "this host"
    why = "neither the server nor a client is on" if ends == 0 else "some of the clients, but not all, are on"
    return Words(
        f"{why} {where}, so its kernel's and whole memory are not of this run and are left out",
        "leave the Dask worker on the server's host out"
        if agent
        else "start asyncli on the server's host, or on a host of its own with an agent on the server's",
    )


@finding("cluster_clock", "warning")
def cluster_clock(host: str, drift_s: float) -> Words:
    """A client host's clock drifts from the session's, which moves its seconds against the others'."""
    return Words(
        f"the clock of {host} has drifted by {1000 * drift_s:+.0f} ms since the beginning: its seconds and batches are so much "
        "off the others'",
        "see that NTP disciplines the clocks of all hosts",
    )


@finding("host_silent", "error")
def host_silent(host: str, held: int, for_s: float) -> Words:
    """A client host says nothing. What it held may live or not, and is counted as not held until it speaks again."""
    return Words(
        f"{host} has said nothing for {for_s:.0f} s: the {held:,} connections that it held are counted as not held until it "
        "speaks again",
        "see its network, its Dask worker, and asyncli's processes on it",
    )


@finding("host_back", "info")
def host_back(host: str, after_s: float) -> Words:
    """A client host that was silent speaks again."""
    return Words(f"{host} speaks again, after {after_s:.1f} s")


@finding("host_lost", "error")
def host_lost(host: str, why: str, held: int, share: str) -> Words:
    """A client host is gone. What it ``held`` is asyncli's own loss; ``share``: what becomes of its connections ("" nothing)."""
    lost = f"{held:,} connections: they are the generator's loss, not the server's" if held else "none"
    return Words(
        f"{host} {why} while it held {lost}{share}",
        "find out what ended it or cut it off (its Dask worker's log, the kernel's log, its network), then run again",
        "error" if held or share else "warning",
    )


@finding("hosts_all_lost", "error")
def hosts_all_lost(why: str, within_s: float | None, for_s: float) -> Words:
    """No client host is left; the run waits ``for_s`` for one. ``within_s``: all were last heard within so long of each other."""
    at_once = ""
    if within_s is not None:
        at_once = f", and all were last heard within {within_s:.1f} s: looks like this session's own network, or the scheduler's"
    return Words(
        f"every host is lost; {why}{at_once}; whoever comes within {format_duration(for_s)} is taken in",
        "see that the scheduler runs, and start a Dask worker on each host again",
    )


@finding("share_taken", "info")
def share_taken(count: int, how: str, by: str) -> Words:
    """Connections of a lost host are opened by other hosts."""
    return Words(f"{count:,} connections that nobody held are {how}: {by}")


@finding("host_joined", "info")
def host_joined(host: str, count: int, reopens: bool) -> Words:
    """A client host came while the run lasted."""
    return Words(f"{host} is there, and {'opens' if reopens else 'goes on with'} {count:,} connections that nobody held")


def _ramp(late_s: float | None, bound_s: float, per_s: float | None, asked_per_s: float) -> str:
    if late_s is not None:
        return f"the ramp ran late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)"
    return f"the ramp reached {per_s or 0.0:,.0f} connections/s of {asked_per_s:,.0f}"


@finding("ramp_held_back", "warning")
def ramp_held_back(late_s: float | None, bound_s: float, per_s: float | None, asked_per_s: float, pending: float) -> Words:
    """The ramp was late (``late_s``: its p99) or slow while ``pending`` connects of a worker waited: the server was slow to
    accept them, which is not held against the generator.
    """
    missed = _ramp(late_s, bound_s, per_s, asked_per_s)
    return Words(
        f"{missed}; {pending:,.0f} connects a worker were waiting for the server to accept them",
        "raise net.core.somaxconn and the server's backlog=, or ramp more slowly (--interval)",
    )


@finding("generator_saturated_ramp", "error")
def saturated_ramp(late_s: float | None, bound_s: float, per_s: float | None, asked_per_s: float) -> Words:
    """The ramp was late (``late_s``: its p99) or slow, and the server did not hold it back: the generator was the limit."""
    return Words(_ramp(late_s, bound_s, per_s, asked_per_s), "ramp more slowly (--interval), or leave more CPU to asyncli")


@finding("generator_saturated_beats", "error")
def saturated_beats(late_s: float, bound_s: float) -> Words:
    """Heartbeats went out so late (p99) that idle times are no longer those that were asked for: the generator was the limit."""
    return Words(
        f"heartbeats went out late: p99 {1e3 * late_s:,.0f} ms (bound {1e3 * bound_s:.0f} ms)",
        "use more --workers, a longer --keepalive or fewer --connections",
    )


_QUIET_HOST = "see that this host neither swaps nor is shared with a heavy load"


@finding("generator_saturated_turn", "error")
def saturated_turn(for_s: float, bound_s: float) -> Words:
    """Workers stood still for a part of the time that tells, or for longer than a heartbeat may take: the generator was the
    limit.
    """
    return Words(f"a worker stood still for {for_s:.1f} s (bound {bound_s:.0f} s)", _QUIET_HOST)


@finding("generator_stood_still", "warning")
def stood_still(for_s: float, until_s: float, share: float, bound: float) -> Words:
    """A worker stood still for a moment, in a run that was otherwise on time. ``share``: of ramp and hold, with its ``bound``."""
    return Words(
        f"a worker stood still for {for_s:.1f} s, until {format_clock(until_s)}: latencies up to that in this second may be "
        f"the generator's own; its standstills are {100 * share:.2g} % of ramp and hold (bound {100 * bound:g} %)",
        _QUIET_HOST,
    )


@finding("generator_saturated_cpu", "error")
def saturated_cpu(share: float, cores: int, phase: str, bound: float) -> Words:
    """The generator filled the cores that it may use, so that what is due waits for its turn: it was the limit."""
    return Words(
        f"the generator used {share:.0%} of {cores} cores in the {phase} (bound {bound:.0%})",
        "give it more cores, ramp more slowly, or take a longer --keepalive",
    )
