"""Findings of a heap that is collected: why what is alive in it is unknown."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_many,
    format_share,
)

# How each runtime is asked for collections: a program of Go collects only by a page of its own
# (net/http/pprof).
_ASKED_BY = {
    "go": "--collect 'http://HOST:PORT/debug/pprof/heap?gc=1'",
    "node": "--collect auto",
    "jvm": "--collect auto",
}
# They collect what is young more often than all of the heap.
_GENERATIONAL = ("jvm", "node", "dotnet")
# Of any runtime whose page of metrics is read.
BY_COMMAND = "--plateaus 5 --collect 'COMMAND {pid}'"
_PLATEAUS_OF_A_LINE = 5
_DAY_S = 86_400
# A longer wait after the drain than most servers keep what a connection had (s).
_LONG_RESIDUE_S = 60.0
_CANNOT_BE_TOLD = "what the connections keep alive in the server's heap cannot be told"


def collect_flags(kind: str) -> str:
    """The flags that ask a runtime (``go``, ``node``, ...) for collections that show its cost; ""
    of one that cannot be asked.
    """
    asked_by = _ASKED_BY.get(kind)
    if asked_by is None:
        return ""
    return f"--plateaus 5 {asked_by}"


@finding("live_unknown", "info")
def live_unknown(
    collections: int,
    rising: int,
    kind: str,
    forced: bool,
    most_bytes: float | None = None,
    plateaus: int = 0,
    others: int = 0,
    at_limit: bool = False,
    replaced_s: float | None = None,
    why_failed: str = "",
    remedy_of_failed: str | None = None,
) -> Words:
    """What is alive in a collected heap is known only right after a collection, and too few came;
    or what was alive did not rise with the connections.

    ``collections``: those that the page of metrics showed, or that asyncli asked for (``forced``);
    ``rising``: of these, while connections were opened; ``kind``: the server's runtime;
    ``most_bytes``: what was alive for each connection at most, where it did not rise with them;
    ``plateaus``: of the ramp; ``others``: the most connections that other clients had at the server
    in a collection. ``at_limit``: a memory limit set the heap's goal, so that more connections show
    no more. ``replaced_s``: when processes of the server were replaced in the ramp; ``why_failed``,
    ``remedy_of_failed``: of collections that were asked for in vain; "" and null without.
    """
    if most_bytes is not None:
        return _did_not_rise(collections, most_bytes, others)
    if forced:
        cause = _cause_of_too_few(plateaus, replaced_s, why_failed, remedy_of_failed)
        return _forced_too_few(collections, rising, cause)
    remedy = (
        "hold more connections, which fill the heap more often: a line needs three collections, "
        "some of them while connections are opened"
    )
    asking = collect_flags(kind) or BY_COMMAND
    by_asking = f"ask for collections ({asking})"
    if remedy_of_failed:
        by_asking = f"for collections: {remedy_of_failed}"
    remedy = f"{by_asking}, or {remedy}"
    if at_limit or (not collections and kind == "jvm"):
        # Its old generation is collected when that is full, which it may never be.
        remedy = by_asking
    if not collections and kind in _GENERATIONAL:
        return Words(
            f"{_CANNOT_BE_TOLD}: its page of metrics showed no full collection, and one of the "
            "young generation alone does not show it",
            remedy,
        )
    if not collections:
        return Words(f"{_CANNOT_BE_TOLD}: its page of metrics showed no collection", remedy)
    return Words(
        f"{_CANNOT_BE_TOLD}: {format_many(rising, 'collection')} came while connections were "
        f"opened, and {format_count(collections - rising)} at other times",
        remedy,
    )


def _did_not_rise(collections: int, most_bytes: float, others: int) -> Words:
    unknown = (
        f"{_CANNOT_BE_TOLD} by {format_many(collections, 'collection')} that asyncli asked for"
    )
    if others:
        return Words(
            f"{unknown}: other clients had up to {format_many(others, 'connection')} at the server "
            "then, and what is alive is theirs too",
            "stop the other clients of this server, and run again",
        )
    return Words(
        f"{unknown}: what was alive after them did not rise with the connections (by at most "
        f"{format_bytes(most_bytes)} for each)",
        "see that --collect asks the process that holds the connections; where it does, hold "
        "more of them",
    )


def _cause_of_too_few(
    plateaus: int, replaced_s: float | None, why_failed: str, remedy_of_failed: str | None
) -> Words:
    """Why there were too few forced collections, as far as that is known, and the remedy."""
    if replaced_s is not None:
        return Words(
            "the server's processes ended, or others replaced them, after "
            f"{format_clock(replaced_s)}, in the ramp",
            "see the server's log of that moment, and run again",
        )
    if remedy_of_failed is not None:
        return Words(why_failed, remedy_of_failed)
    if plateaus >= _PLATEAUS_OF_A_LINE:
        return Words("", "let each rest be longer than a collection takes (--plateau-rest)")
    return Words("", "let the ramp rest, so that more come between: --plateaus 5")


def _forced_too_few(collections: int, rising: int, cause: Words) -> Words:
    evidence = (
        f"{_CANNOT_BE_TOLD} by {format_many(collections, 'collection')} that asyncli asked for, "
        f"{format_count(rising)} of them while connections were opened"
    )
    if cause.evidence:
        evidence = f"{evidence}: {cause.evidence}"
    return Words(evidence, cause.remedy)


@finding("goal_unknown", "info")
def goal_unknown(
    collections: int,
    at_least_goal: int,
    at_limit: int,
    least_goal_bytes: float,
    limit_bytes: float | None = None,
    connections: int | None = None,
) -> Words:
    """What the server takes when its heap has filled is a line through the goals of Go's heap, and
    too few of these follow what is alive in it: the goal is never below 4 MB (by GOGC=100), and
    never above what a memory limit (GOMEMLIMIT) leaves.

    ``collections``: those after which the goal followed what was alive; ``at_least_goal``,
    ``at_limit``: those after which it was, or may have been, the least one
    (``least_goal_bytes``) or that of the limit (``limit_bytes``); ``connections``: as many go
    beyond the least goal for long enough (null: unknown).
    """
    cannot_be_told = "what the server takes when its heap has filled cannot be told"
    if at_limit and limit_bytes is not None:
        return Words(
            f"{cannot_be_told}: after {format_count(at_limit)} of "
            f"{format_many(collections + at_least_goal + at_limit, 'collection')} the memory "
            f"limit of {format_bytes(limit_bytes)} (GOMEMLIMIT) set the heap's goal, or may have, "
            "and not what was alive",
            "plan with the limit itself: how many connections it has room for is among the limits",
        )
    if at_least_goal:
        remedy = "hold more connections, which fill the heap beyond it"
        if connections is not None:
            enough = format_count(connections)
            remedy = f"hold {enough} connections or more, which fill the heap beyond it"
        return Words(
            f"{cannot_be_told}: after {format_count(at_least_goal)} of "
            f"{format_many(collections + at_least_goal, 'collection')} the heap's goal was Go's "
            f"least one, {format_bytes(least_goal_bytes)}, however little was alive",
            remedy,
        )
    return Words(
        f"{cannot_be_told} by the goals after {format_many(collections, 'collection')}",
        "hold more connections, which fill the heap more often",
    )


@finding("memory_limit_reached", "warning")
def memory_limit_reached(
    limit_bytes: float,
    from_s: float,
    connections: int,
    collections: int,
    seconds: float,
    cpu_s: float | None,
    earlier_collections: int,
    earlier_seconds: float,
    earlier_cpu_s: float | None,
) -> Words:
    """All memory of Go's runtime was at its limit (GOMEMLIMIT): what was alive filled what that
    leaves to the heap. The limit is soft: the server takes more where it must, and collects all
    the time, which takes the CPU of its answers.

    ``from_s``, ``connections``: when that began, and how many were held then; ``collections``,
    ``cpu_s``: of the ``seconds`` from then to the hold's end, and ``earlier_...`` of the time from
    the first connect to then. CPU is that of all the server; null: it was not read.
    """
    since = _collected(collections, cpu_s, seconds)
    if earlier_seconds > 0:
        before = _collected(earlier_collections, earlier_cpu_s, earlier_seconds)
        since += f", after {before} before that"
    return Words(
        f"from {format_clock(from_s)} on, with {format_many(connections, 'connection')}, what was "
        f"alive filled the server's memory limit of {format_bytes(limit_bytes)} (GOMEMLIMIT), and "
        f"Go collected all the time: {since}; latencies include it",
        "raise GOMEMLIMIT, or hold fewer connections on this server",
    )


def _collected(collections: int, cpu_s: float | None, seconds: float) -> str:
    text = format_many(collections, "collection")
    if cpu_s is not None:
        text += f" and {format_duration(cpu_s)} of the server's CPU"
    return f"{text} in {format_duration(seconds)}"


@finding("heap_of_a_part", "warning")
def heap_of_a_part(
    share: float | None,
    processes: int | None,
    resident_bytes: float | None,
    goal_bytes: float | None,
    server: str = "",
    program: str = "",
    pid: int = 0,
) -> Words:
    """What is alive is known of one process. It is divided by the connections only if that process
    holds them all: its descriptors rise by one for each. A program behind a proxy holds as many as
    the proxy, and its heap is not the proxy's.

    ``share``: the descriptors, or connections by its own count, that the process of the page of
    metrics opened for each connection held; null: the page does not say. ``processes``: those of
    the server then. ``resident_bytes``: the least that a connection took of the server's processes,
    where that is more than ``goal_bytes``, the most by the page when the heap has filled: then the
    server has memory that the page does not count, of C libraries or of mapped files, and the cost
    at its goal is unknown. ``server``: its program's name; "" where it is unknown. ``program``,
    ``pid``: whose page it is, where that is another one; "" and 0 where it is not.
    """
    if program:
        return _of_another_program(server or "the server", program, pid)
    if resident_bytes is not None and goal_bytes is not None:
        return Words(
            f"a connection took at least {format_bytes(resident_bytes)} of the server, and by its "
            f"page of metrics at most {format_bytes(goal_bytes)} with its heap at the goal: the "
            "page does not count all of the server's memory, so the cost at the goal is unknown",
            "plan with the server's resident memory after a long hold with all connections",
        )
    not_divided = "so what it keeps alive is not divided by them"
    if share is not None and round(share, 2) <= 0:
        return Words(
            "the page of metrics is of another process: neither its descriptors nor its "
            f"connections rose while this run's were opened, {not_divided}",
            f"name the page of {server or 'the server'} itself (--server-metrics)",
        )
    if share is not None and share > 1:
        return Words(
            "the process of the page of metrics opened descriptors or connections for "
            f"{format_share(share)} of those that this run opened: it holds others' too, "
            f"{not_divided}",
            "stop the other clients of this server, and run again",
        )
    if share is not None:
        return Words(
            "the process of the page of metrics opened descriptors or connections for "
            f"{format_share(share)} of those that this run opened: it does not hold them all, "
            f"{not_divided}",
            "let one worker serve, or name a page that adds up all workers (--server-metrics)",
        )
    return Words(
        f"the server has {format_count(processes or 0)} processes, and what is alive is known of "
        f"one that does not tell its descriptors: others may hold connections too, {not_divided}",
        "start the server with one process, or name a page that tells its descriptors "
        "(--server-metrics)",
    )


def _of_another_program(server: str, program: str, pid: int) -> Words:
    return Words(
        f"the page of metrics is of {program} (pid {pid}), and {server} holds the connections that "
        f"this run opened: the heap, the stacks and the goal of {program} are no part of the "
        f"memory of {server}, and are left out",
        f"name the page of {server} itself (--server-metrics); for what a connection costs in "
        f"{program}, aim the URL at a port of {program} (ss -ltnp shows them: pid={pid})",
    )


@finding("collections_forced", "info")
def collections_forced(
    collections: int,
    longest_s: float,
    alive_bytes: float | None = None,
    added_bytes: float | None = None,
    by_clock_bytes: float | None = None,
    stacks_bytes: float | None = None,
    goroutines: int | None = None,
    residue_s: float = 0.0,
) -> Words:
    """asyncli asked the server's runtime for collections (--collect). The server stands still in
    each, and its memory is not what it would be without them: resident memory, latencies and the
    heap's goal are to be measured in another run.

    ``alive_bytes``: what was alive after the drain beyond what was before the first connect, if
    that is more than a tenth of ``added_bytes``, the most that the run had added: a leak, a cache,
    or what the first use of the program loads. null: it is less, or unknown. ``by_clock_bytes``:
    about so much of it came by the clock alone (``live_rises``); null: nothing certainly did.
    ``stacks_bytes``: what was in use of the runtime's stacks then, likewise, by ``goroutines`` that
    no connection needs (null: not counted); null: it is no more than the runtime keeps for its next
    threads, or unknown. ``residue_s``: how long after the last close the collections began.
    """
    evidence = (
        f"asyncli asked the server for {format_many(collections, 'collection')} of its heap; the "
        f"longest took {format_duration(longest_s)}, and heartbeats waited for it"
    )
    remedy = ""
    if alive_bytes is not None and added_bytes is not None:
        evidence = f"{evidence}; {_still_alive(alive_bytes, added_bytes, by_clock_bytes)}"
        # A leak by the clock has a finding of its own.
        if by_clock_bytes is None:
            remedy = _comes_again(residue_s)
    if stacks_bytes is not None:
        evidence = f"{evidence}; {_stacks_in_use(stacks_bytes, goroutines)}"
        remedy = _comes_again(residue_s)
    return Words(evidence, remedy)


def _comes_again(residue_s: float) -> str:
    """How to tell a leak from what is freed late, comes once, or fills up."""
    again = (
        "run again on the same process: code and tables of the first use come once, a cache fills "
        "up, and a leak comes again"
    )
    if residue_s >= _LONG_RESIDUE_S:
        return again
    return (
        f"wait for what the server frees late (--residue {_LONG_RESIDUE_S:.0f}s), and then {again}"
    )


def _still_alive(alive_bytes: float, added_bytes: float, by_clock_bytes: float | None) -> str:
    still_alive = (
        f"{format_bytes(alive_bytes)} of the {format_bytes(added_bytes)} that this run added to "
        "what is alive in it were still alive after the drain: no connection held them, and they "
        "are no garbage"
    )
    if by_clock_bytes is None:
        return still_alive
    if by_clock_bytes >= alive_bytes:
        return f"{still_alive}; all of it came by the clock"
    return f"{still_alive}; about {format_bytes(by_clock_bytes)} of it came by the clock"


def _stacks_in_use(stacks_bytes: float, goroutines: int | None) -> str:
    in_use = f"{format_bytes(stacks_bytes)} of its stacks were still in use after the drain"
    if goroutines is None:
        return f"{in_use}: threads that no connection needs"
    return f"{in_use}: {format_many(goroutines, 'goroutine')} that no connection needs"


@finding("live_rises", "warning")
def live_rises(server: str, bytes_per_s: float, half_bytes_per_s: float) -> Words:
    """What is alive in the server's heap rose from each collection to the next after the drain,
    when none of this run's connections was open: a leak by the clock, as of a timer, or a cache
    that fills by itself. Garbage is not in it. What the server keeps of each reading of its page of
    metrics, which asyncli reads once a second, counts too. It is in no cost of a connection.

    ``server``: its program's name; ``bytes_per_s``: how fast it rises, and ``half_bytes_per_s``,
    half of its interval.
    """
    a_day = format_bytes(_DAY_S * bytes_per_s)
    return Words(
        f"what is alive in {server} rises by {format_bytes(bytes_per_s)} a second "
        f"(± {format_bytes(half_bytes_per_s)}; {a_day} a day) while none of this run's connections "
        "is open",
        "see what the server adds by itself: two snapshots of its heap, some minutes apart and "
        "without connections, show it",
    )


@finding("collection_failed", "warning")
def collection_failed(why: str, remedy: str) -> Words:
    """The server's runtime could not be asked for a collection, or nothing showed that it made one.
    The run goes on without them. ``remedy``: "" where ``why`` says all that is known.
    """
    return Words(
        f"asyncli asked for no more collections of the server's heap: {why}",
        remedy or "mend that, or leave --collect out",
    )
