"""How many clients are back over time, of each way to come back that was asked for, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asyncli.analysis.storm_forecast import StormForecast
from asyncli.report.figures import drawing
from asyncli.report.figures.timeline_data import Role

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Each its own colour and dash.
_ROLES: tuple[Role, ...] = ("ours", "server", "high", "kernel", "total", "asked")
_HEIGHT_PX = 150.0
_LEFT_PX = 58.0
_RIGHT_PX = 150.0
_ON_A_PHONE_PX = 12.0


@drawing.drawn_alone
def storm_curves(
    forecasts: Sequence[StormForecast], *, style: drawing.Style = drawing.WIDE
) -> Figure:
    """The curves of these storms, from their common instant on."""
    drawn = [forecast for forecast in forecasts if forecast.curve and last_s(forecast)]
    if not drawn:
        raise drawing.NothingToDraw("No client is back in any of these storms.")
    right = _ON_A_PHONE_PX if style.narrow else _RIGHT_PX
    above = 20.0 * len(drawn) if style.narrow else 8.0
    figure, rows = drawing.sheet(style, [_HEIGHT_PX], (_LEFT_PX, right, above, 30.0))
    [ax] = rows[:, 0]
    end_s = max(last_s(forecast) for forecast in drawn)
    for number, forecast in enumerate(drawn):
        t_s, counts = _points(forecast, end_s)
        label = drawing.cut(forecast.policy, 18)
        drawing.plot_line(ax, _ROLES[number % len(_ROLES)], t_s, counts, label)
    ax.set_ylim(0, max(forecast.connections for forecast in drawn) * 1.04)
    drawing.ticks(ax.yaxis, "", 4)
    drawing.time_axis(ax, 0.0, end_s, style.width - _LEFT_PX - right)
    drawing.legend(ax, style, columns=1)
    return figure


def last_s(forecast: StormForecast) -> float:
    """When the curve ends (s): the last client is back, or the simulation was left unfinished."""
    if forecast.back.all_s is not None:
        return forecast.back.all_s
    return forecast.until_s or 0.0


def _points(forecast: StormForecast, end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """The curve with its begin; those that end before ``end_s`` are level until then."""
    ends_s = last_s(forecast)
    points = len(forecast.curve)
    t_s = [0.0, *(ends_s * point / points for point in range(1, points + 1)), end_s]
    return np.array(t_s), np.array([0, *forecast.curve, forecast.curve[-1]])
