"""Findings of the run file: a disk that refuses, a file that is moved or deleted, records that are none."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.units import format_duration


@finding("run_file_trouble", "warning")
def run_file_trouble(why: str) -> Words:
    """The run file cannot be written; records wait in memory, and are written when it can."""
    return Words(why, "make room or rights there; what waits is written then")


@finding("run_file_back", "info")
def run_file_back(path: str, after_s: float, dropped: int) -> Words:
    """The run file is written again. ``dropped``: records for which there was no room in memory meanwhile."""
    all_of_it = f"but for {dropped:,} records that were dropped" if dropped else "and nothing is missing"
    return Words(f"{path} is written again after {format_duration(after_s)}, {all_of_it}")


@finding("run_file_moved", "warning")
def run_file_moved(path: str) -> Words:
    """The run file was moved or deleted while it was written, which ended the run."""
    return Words(
        f"{path} was moved or deleted while the run wrote to it: the run ends", "leave the run file where it is until its end"
    )


@finding("samples_skipped", "warning")
def samples_skipped(count: int) -> Words:
    """Rows of the run file that are no number of a host's, or of no metric: left out."""
    return Words(
        f"{count:,} of the samples in the run file are no number that a host could have, or of no metric: they were skipped",
        "the report is of the rest",
    )


@finding("records_missing", "error")
def records_missing(count: int) -> Words:
    """The disk of the run file refused records, and there was no room in memory to keep them, so the numbers lack them."""
    return Words(
        f"{count:,} records are missing from the run file: its disk refused them",
        "write the run file to a disk with room (--out)",
    )
