"""What Go's runtime lays down for the goal of its heap (runtime/mgcpacer.go). Pure.

The heap may grow by GOGC percent of what was alive at the last collection, but not below a least
goal, and not above what a memory limit leaves it. Only between the two does the goal follow what
is alive.
"""

from __future__ import annotations

from asyncli.model import metrics
from asyncli.model.run import Run

#: Of a program in which GOGC is not set, in percent.
USUAL_GOGC = 100
# The least goal by the usual GOGC (bytes).
_LEAST_GOAL = 4 * 1024 * 1024
# Of what a memory limit leaves the heap, Go keeps this share free, and at least this much (bytes).
_HEADROOM = 0.03
_LEAST_HEADROOM = 1024 * 1024
#: What a limit counts and no page says, before the first connect (bytes): partly free spans, tables
#: of profiles, room of the runtime's own structures. 2.7 to 3.2 MB in three programs of Go 1.26,
#: by what their goals left of the limit.
UNSEEN = 3e6
LEAST_UNSEEN = 2.5e6
#: The most of it (bytes), and the most beside for each byte alive: 0.01 to 0.08 there.
MOST_UNSEEN = 5e6
MOST_UNSEEN_OF_LIVE = 0.1


def is_of_go(run: Run) -> bool:
    """Whether the heap of which the pages are is one of Go: of the server, or of the program behind
    it, by the page alone.
    """
    if run.place.page_process is None:
        return run.place.server_runtime.kind == "go"
    return bool(run.series(metrics.RUNTIME_GOGC_PERCENT))


def gogc_of(run: Run) -> int | None:
    """GOGC of a program in Go whose page is read (percent; -1: off), as the page has it, which the
    program may have set; None where it is unknown.
    """
    by_page = run.series(metrics.RUNTIME_GOGC_PERCENT).last()
    if by_page is not None:
        return round(by_page)
    if run.place.page_process is not None:
        return None
    return run.place.server_runtime.gogc


def memory_limit_of(run: Run) -> float | None:
    """The memory limit (bytes) of a program in Go, by its page, or that it was started with; None
    without one, and of another runtime.
    """
    if not is_of_go(run):
        return None
    by_page = run.series(metrics.RUNTIME_LIMIT_BYTES).last()
    if by_page or run.place.page_process is not None:
        return by_page
    return run.place.server_runtime.heap_limit_bytes


def gogc_of_server(run: Run) -> int | None:
    """GOGC of the server (percent; -1: off), whosever the page is; None of another runtime."""
    if run.place.page_process is None:
        return gogc_of(run)
    return run.place.server_runtime.gogc


def memory_limit_of_server(run: Run) -> float | None:
    """The memory limit (bytes) of the server if that is in Go, whosever the page is."""
    runtime = run.place.server_runtime
    if run.place.page_process is None:
        return memory_limit_of(run)
    if runtime.kind != "go":
        return None
    return runtime.heap_limit_bytes


def least_goal(gogc: int | None) -> float:
    """Below this size no collection begins (bytes), whatever is alive; 0 with GOGC off."""
    if gogc is None:
        gogc = USUAL_GOGC
    return _LEAST_GOAL * max(0, gogc) / 100


def headroom(left: float) -> float:
    """What Go keeps free (bytes) of what a limit has ``left`` for the heap."""
    return max(_LEAST_HEADROOM, _HEADROOM * left)


def most_alive(left: float, live: float, beside: float) -> float:
    """How many connections fill what a limit has ``left`` (bytes), each with so much alive and
    ``beside`` the heap, until Go has no more than its headroom.
    """
    by_share = left / ((1 + _HEADROOM) * live + beside)
    by_least = (left - _LEAST_HEADROOM) / (live + beside)
    return max(0.0, min(by_share, by_least))
