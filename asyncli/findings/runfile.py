"""Findings of the run file: failed writes, invalid records."""

from __future__ import annotations

from asyncli.findings import finding
from asyncli.model.units import format_duration


@finding("run_file_trouble", "warning", "free space or grant rights there; waiting records are then written")
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
    """The run file was moved or deleted while it was written, which ended the run."""
    return f"{path} was moved or deleted while the run wrote to it: the run ends"


@finding("samples_skipped", "warning", "the report covers the rest")
def samples_skipped(count: int) -> str:
    """Samples in the run file with an impossible value or an unknown metric were skipped."""
    return f"{count:,} samples in the run file have an impossible value or no known metric and were skipped"


@finding("records_missing", "error", "write the run file to a disk with free space (--out)")
def records_missing(count: int) -> str:
    """The disk of the run file refused records and memory was full, so the numbers lack them."""
    return f"{count:,} records are missing from the run file: its disk refused them"
