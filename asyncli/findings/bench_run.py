"""Findings of a bench's course."""

from __future__ import annotations

from asyncli.findings import finding
from asyncli.findings.generator import BENCH_AGAIN


@finding("requests_unaccounted", "error", BENCH_AGAIN)
def requests_unaccounted(accounted: int, asked: int) -> str:
    """Requests of a bench have no outcome: a bug of asyncli. The bench is invalid."""
    return f"only {accounted:,} of {asked:,} requests are accounted for"
