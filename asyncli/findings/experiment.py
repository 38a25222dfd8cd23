"""Findings of experiments: what of them was left out, failed or was cut short."""

from __future__ import annotations

from asyncli.findings import Words, finding


@finding("stopped", "warning")
def stopped() -> Words:
    """The user stopped the experiment, so its record is of what was measured by then."""
    return Words("it was stopped before its end: what follows is of what was measured")


@finding("ended_early", "error")
def ended_early(why: str) -> Words:
    """An error ended the experiment, so its record is of what was measured by then."""
    return Words(f"it ended before its time ({why}): what follows is of what was measured")


@finding("not_concluded", "error")
def not_concluded(why: str) -> Words:
    """The rounds could not be made into tables and verdicts on claims. The record has the rounds."""
    return Words(
        f"what was measured could not be concluded from ({why}); the rounds are in the record",
        "report it: this is a bug of asyncli",
    )


@finding("untested", "error")
def untested() -> Words:
    """No round of the experiment is usable."""
    return Words("nothing was measured of which anything could be said")


@finding("quick", "info")
def tasted() -> Words:
    """The experiment ran with --quick: few and short rounds, whose figures scatter more."""
    return Words("a taste: few rounds, each of them short; its figures scatter more than a whole run's", "run it without --quick")


@finding("left_out", "warning")
def left_out(what: str, why: str, remedy: str) -> Words:
    """A part of the experiment could not be run; the rest went on without it."""
    return Words(f"{what} is left out: {why}", remedy)


@finding("round_failed", "warning")
def round_failed(step: str, round_number: int, why: str) -> Words:
    """A round failed; it is in the record, and in no table and no claim. The first ``round_number`` is 1."""
    return Words(
        f"{step}, round {round_number} counts in no table and no claim: {why}",
        "see that the host is not busy with something else",
    )


@finding("cell_failed", "warning")
def cell_failed(cell: str, why: str, remedy: str) -> Words:
    """A load was too much for a server model, which is not asked for that load again."""
    return Words(f"{cell}: {why}", remedy)


@finding("no_group", "warning")
def no_group(why: str, remedy: str) -> Words:
    """No memory control group could be made for the server, so its memory is taken from the whole host's."""
    return Words(f"{why}: what one more takes is reckoned from the whole host's memory, other programs' included", remedy)


@finding("slots", "info")
def slots(workers: int, slots: int, nofile: int, source_slots: int) -> Words:
    """How nginx was configured beside the source's: workers, and the connection slots and descriptors of each."""
    return Words(
        f"nginx has {workers} workers of {slots:,} slots and {nofile:,} descriptors each (the source: {source_slots:,} of both): "
        "as many workers as the descriptor limit forces, and slots enough that no idle connection is closed to reuse its slot; "
        "it ends no connection after some requests, as the source's does after 100"
    )
