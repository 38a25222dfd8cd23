"""A recorded run and its report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from asyncli.analysis.compare import Comparison, compare
from asyncli.model.go_heap import gogc_of_server, memory_limit_of_server
from asyncli.model.run import Run
from asyncli.report.analyses import Analyses, analyse
from asyncli.report.summary import Summary, summarise
from asyncli.store.reader import read_run

if TYPE_CHECKING:
    from asyncli.analysis.sizing import Sizing
    from asyncli.report.document import Picture


class Results:
    """The run in ``path``. Each part is computed on first use."""

    def __init__(self, path: Path, records: Run) -> None:
        self.path = path
        self.records = records

    @cached_property
    def analyses(self) -> Analyses:
        """Totals, costs with their fits, forecast, drifts, diagnoses."""
        return analyse(self.records)

    @cached_property
    def summary(self) -> Summary:
        """The report as data; its JSON is a contract with other tools."""
        return summarise(self.records, self.analyses)

    @cached_property
    def pictures(self) -> list[Picture]:
        """The report's figures."""
        from asyncli.report.figures.pictures import pictures

        return pictures(self.records, self.summary, self.analyses)

    def sized(self, connections: int, host_bytes: float | None = None) -> Sizing:
        """The memory of so many connections on the server, on hosts of ``host_bytes`` each.

        ``host_bytes`` None: as the run's server has.
        """
        # asyncli-light is without it.
        from asyncli.analysis.sizing import size

        if host_bytes is None:
            host_bytes = self._server_memory_bytes
        most_held = max(self.records.held.values, default=0.0)
        return size(
            self.analyses.costs,
            self.analyses.prediction,
            connections=connections,
            measured=round(most_held),
            host_bytes=host_bytes,
            gogc=gogc_of_server(self.records),
            memory_limit=memory_limit_of_server(self.records),
        )

    @property
    def _server_memory_bytes(self) -> float | None:
        place = self.records.place
        if place.sides.far is None:
            return place.memory_bytes
        return place.sides.far.memory_bytes

    def html(self) -> str:
        """The report as one offline HTML page."""
        from asyncli.report.run_report import render

        return render(self.records, self.summary, self.analyses, self.pictures)


def read_results(path: str | os.PathLike[str], *, for_report: bool = False) -> Results:
    """The run in ``path``; ``for_report``: without the metrics that no report uses.

    Raises :class:`~asyncli.model.errors.StoreError` for a file that is missing, damaged or not a
    run.
    """
    return Results(Path(path), read_run(path, for_report=for_report))


def compare_results(runs: Iterable[tuple[Path, Run | None]]) -> Comparison:
    """The differences between runs: (file, its records if already read)."""
    # A soak prints no comparison, and each would import it.
    from asyncli.report.comparison_report import measure_files

    return compare(measure_files(runs))


def free_name(what: str = "asyncli", suffix: str = ".db") -> Path:
    """``asyncli-<time>.db`` in the current folder, with a number if that exists."""
    stem = f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = Path(f"{stem}{suffix}")
    number = 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path
