"""Notebooks: detection, a soak's live view, and display of figures."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from typing import Any

from asyncli.model.plan import Plan
from asyncli.report.live import PlainView
from asyncli.report.livescreen import SHORTEST_FRAME_S, Snapshot
from asyncli.report.livestate import LiveObserver


def kernel_shell() -> Any | None:
    """IPython's shell in a kernel (notebook, JupyterLab, nbclient); None elsewhere, including
    IPython in a terminal.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and getattr(shell, "kernel", None) is not None else None


class NotebookObserver(LiveObserver):
    """Shows the soak below the cell, in one output that is updated in place."""

    shows_cost = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.plan, self._shown_s = plan, 0.0
        self._handle: Any = None

    def show(self, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._shown_s >= SHORTEST_FRAME_S:
            self._shown_s = now
            self._update(Snapshot(self.plan, self.fold.state()))

    def end(self, outcome: str) -> None:
        """Show the outcome in place of the live view."""
        with contextlib.suppress(Exception):
            self._update(Snapshot(self.plan, self.fold.state(), outcome))

    def _update(self, snapshot: Snapshot) -> None:
        from IPython import display as ipython

        if self._handle is None:
            display: Any = ipython.display
            self._handle = display(snapshot, display_id=True)
        else:
            self._handle.update(snapshot)


class LogObserver(LiveObserver):
    """Shows the soak as lines on standard error: each phase, each finding, and every ten
    seconds.
    """

    shows_cost = True

    def __init__(self, plan: Plan) -> None:
        from rich.console import Console

        super().__init__(plan)
        self._view = PlainView(plan, Console(stderr=True, highlight=False))

    def show(self, at_once: bool) -> None:
        self._view.update(self.fold.state())


#: The figure that this cell made last, which the cell's end displays unless it is the cell's value.
_last_figure: list[Any] = []


def show_figure(figure: Any) -> None:
    """Have the cell display ``figure``, also where it is not the cell's value: each one, in the
    order in which they were made.
    """
    shell = kernel_shell()
    events = getattr(shell, "events", None)
    if events is None:
        return
    _show_last()
    if _at_the_cells_end not in events.callbacks["post_run_cell"]:
        events.register("post_run_cell", _at_the_cells_end)
    _last_figure.append(figure)


def _at_the_cells_end(result: Any) -> None:
    if _last_figure and result.result is _last_figure[-1]:
        # The kernel displays the cell's value by itself.
        _last_figure.clear()
    _show_last()


def _show_last() -> None:
    from IPython import display as ipython

    display: Any = ipython.display
    while _last_figure:
        display(_last_figure.pop())


def show_figures() -> None:
    """Have the kernel display matplotlib figures as ``%matplotlib inline`` does, unless it already
    does.
    """
    shell = kernel_shell()
    if shell is None:
        return
    from matplotlib.figure import Figure

    with contextlib.suppress(AttributeError, KeyError):
        formatters = shell.display_formatter.formatters
        if not any(
            Figure in formatters[kind]
            for kind in ("image/png", "image/svg+xml", "image/jpeg", "application/pdf")
        ):
            formatters["image/png"].for_type(Figure, _png)


def _png(figure: Any) -> tuple[bytes, dict[str, int]]:
    """The figure as PNG at twice the screen's resolution, and its size in pixels."""
    from asyncli.report.figures.drawing import drawing

    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=2 * figure.dpi, facecolor=figure.get_facecolor())
    width, height = figure.get_size_inches() * figure.dpi
    return buffer.getvalue(), {"width": round(width), "height": round(height)}
