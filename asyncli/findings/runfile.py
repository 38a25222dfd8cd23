"""Findings of the run file: failed writes, invalid records."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.model.units import format_clock, format_duration, format_many


@finding(
    "run_file_trouble",
    "warning",
    "free space or grant rights there; waiting records are then written",
)
def run_file_trouble(why: str) -> str:
    """The run file cannot be written; records wait in memory until it can."""
    return why


@finding("run_file_back", "info")
def run_file_back(path: str, after_s: float, dropped: int) -> str:
    """The run file is written again. ``dropped``: records that did not fit in memory."""
    missing = f"{dropped:,} records were dropped" if dropped else "nothing is missing"
    return f"{path} is written again after {format_duration(after_s)}; {missing}"


@finding("run_file_moved", "warning", "leave the run file where it is until the run's end")
def run_file_moved(path: str) -> str:
    """The run file was moved, deleted or emptied while it was written, which ended the run."""
    return f"{path} was moved, deleted or emptied while the run wrote to it: the run ends"


@finding("samples_skipped", "warning", "the report covers the rest")
def samples_skipped(count: int) -> str:
    """Samples in the run file with an impossible value or an unknown metric were skipped."""
    return (
        f"{count:,} samples in the run file have an impossible value or no known metric and were "
        "skipped"
    )


@finding("records_missing", "error")
def records_missing(count: int, at_s: float | None) -> Words:
    """The numbers lack records: the disk of the run file refused them and memory was full, or the
    file was damaged or changed later, so that its seconds do not add up. ``at_s``: from when on;
    ``count``: by how many connections (else how many records).
    """
    if at_s is None:
        evidence = f"{count:,} records are missing from the run file: its disk refused them"
        return Words(evidence, "write the run file to a disk with free space (--out)")
    return Words(
        f"records are missing from the run file: from {format_clock(at_s)} on, what is held is "
        "not what was held before, plus what opened, less what was lost (by "
        f"{format_many(abs(count), 'connection')}), so losses may be missing too",
        "read the original file, or a copy of it from before it was damaged or changed",
    )
