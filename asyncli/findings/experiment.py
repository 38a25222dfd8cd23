"""Findings of experiments: parts that were left out, failed or ended early."""

from __future__ import annotations

from asyncli.findings import Words, finding


@finding("stopped", "warning")
def stopped() -> str:
    """The user stopped the experiment; the record has what was measured before."""
    return "stopped by the user; the results cover what was measured before"


@finding("ended_early", "error")
def ended_early(why: str) -> str:
    """An error ended the experiment; the record has what was measured before."""
    return f"ended early ({why}); the results cover what was measured before"


@finding("not_concluded", "error", "report this: it is a bug of asyncli")
def not_concluded(why: str) -> str:
    """The rounds could not be evaluated. The record has the rounds, without tables and verdicts."""
    return f"the rounds could not be evaluated ({why}); the record has them"


@finding("untested", "error")
def untested() -> str:
    """No round of the experiment is usable."""
    return "no round is usable, so there is no result"


@finding("quick", "info", "run it without --quick")
def quick_run() -> str:
    """The experiment ran with --quick: few, short rounds with wider intervals."""
    return "--quick: few, short rounds, so the intervals are wider than in a full run"


@finding("left_out", "warning")
def left_out(what: str, why: str, remedy: str) -> Words:
    """A part of the experiment could not run; the rest ran without it."""
    return Words(f"{what} is left out: {why}", remedy)


@finding("round_failed", "warning", "see that the host is not busy with other work")
def round_failed(step: str, round_number: int, why: str) -> str:
    """A round failed. It is in the record but in no table and no verdict. ``round_number`` counts
    from 1.
    """
    return f"{step}, round {round_number} failed and is not counted: {why}"


@finding("cell_failed", "warning")
def cell_failed(cell: str, why: str, remedy: str) -> Words:
    """A server model failed at a load, which is not tried again."""
    return Words(f"{cell}: {why}", remedy)


@finding("no_group", "warning", "run it as root, and on a quiet host")
def no_group(why: str) -> str:
    """The server has no memory control group, so the cost is measured on the whole host, other
    programs included.
    """
    return (
        f"cannot create a memory control group ({why}), so the cost of a connection is measured "
        "on the whole host"
    )


@finding("slots", "info")
def slots(workers: int, slots: int, nofile: int, source_slots: int) -> str:
    """How nginx was configured: workers, and the connection slots and descriptors of each.
    ``source_slots``: in the original.
    """
    return (
        f"nginx has {workers} workers with {slots:,} slots and {nofile:,} descriptors each "
        f"(source: {source_slots:,} each): enough workers for the descriptor limit, enough slots "
        "that no idle connection is closed for its slot, and no limit of requests per connection "
        "(source: 100)"
    )
