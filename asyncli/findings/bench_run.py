"""Findings of a bench's course."""

from __future__ import annotations

from asyncli.findings import Words, finding
from asyncli.findings.generator import BENCH_AGAIN


@finding("requests_unaccounted", "error")
def requests_unaccounted(accounted: int, asked: int) -> Words:
    """Requests of a bench are neither answered nor failed nor left: a bug of asyncli, and the bench is invalid."""
    return Words(f"{accounted:,} of {asked:,} requests are accounted for", BENCH_AGAIN)
