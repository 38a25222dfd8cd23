"""What ``asyncli storm`` does with a run: what it shows of the server's pace, and the storms that
follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncli.analysis.storm_forecast import forecast, least_jitter
from asyncli.analysis.storm_pace import Unmeasured, known_backlog, measured_pace
from asyncli.core.events import Reconnect
from asyncli.model.errors import PlanError
from asyncli.model.run import Run
from asyncli.report.storm_report import Answer


def predict_storm(
    run: Run,
    path: str,
    policies: Sequence[Reconnect],
    connections: int | None,
    backlog: int | None,
) -> Answer:
    """Storms by each of ``policies``. ``path``: of the run's file. ``connections`` None: as many as
    the run has; ``backlog`` None: as the run has it.

    Raises :class:`PlanError` where the run shows no pace, or no backlog is known.
    """
    if not any(run.held.values) and not run.complete:
        raise PlanError(
            f"RUN: {path} has held no connections so far; name a run that is over, or wait until "
            "this one holds some"
        )
    if not any(run.held.values):
        raise PlanError(
            f"RUN: {path} held no connections, so nothing was measured; name a run that held some"
        )
    if not run.plan.has_ports:
        raise PlanError(
            f"RUN: {path} was over a Unix socket, where a full queue has other laws; name a run "
            "over TCP"
        )
    if backlog is None:
        backlog = known_backlog(run)
    if backlog is None:
        raise PlanError(
            f"RUN: {path} does not know the server's listen backlog; add --backlog N (on its host: "
            "ss -ltn, Send-Q)"
        )
    pace = measured_pace(run, backlog)
    if isinstance(pace, Unmeasured):
        raise PlanError(
            f"RUN: {path} shows no pace of the server's: {pace.why}; soak with --at 5s storm "
            "--reconnect now"
        )
    count = connections or run.plan.connections
    seed = run.plan.seed
    forecasts = tuple(forecast(pace, policy, seed, count) for policy in policies)
    return Answer(count, pace, forecasts, least_jitter(pace, seed, count))
