"""asyncli in Python and in notebooks: load a run, look at it, plot it, compare it, make another.

run = asyncli.load("run.db")           # any machine that runs Python: no uvloop, no Linux
run.summary.verdict, run.cost(), run.plot.cost(), run.frames.ticks

async with asyncli.lab_server("nginx", connections="10k") as server:
    run = await asyncli.soak(server, connections="10k", hold="30s")
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncli.app.results import compare_results, free_name
from asyncli.errors import HostError, PlanError
from asyncli.notebook import LogObserver, NotebookObserver, kernel_shell
from asyncli.plan import Layer, Plan, build_plan, load_plan, plan_document
from asyncli.report.answer import why
from asyncli.report.comparison_report import require_some
from asyncli.report.livestate import LiveObserver
from asyncli.report.summary import Summary
from asyncli.report.thresholds import require as require_limits
from asyncli.store.reader import read_run
from asyncli.views import Compared, Plots, Recorded

if TYPE_CHECKING:
    from asyncli.lab.base import LabServer

__all__ = ["Compared", "Plots", "Recorded", "compare", "lab_server", "load", "make_plan", "soak"]


def load(run: str | os.PathLike[str]) -> Recorded:
    """The run in the file ``run``: finished, interrupted, or still being written (as it is now; load it again for more).

    Raises :class:`~asyncli.errors.StoreError` for a file that is missing, of another program, of a newer asyncli, or damaged.
    """
    path = Path(run)
    return Recorded(path, read_run(path))


def compare(first: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Compared:
    """The differences between runs (files, or results of :func:`load`), and which are real.

    Raises :class:`~asyncli.errors.StoreError` for a file that cannot be read or compared, PlanError for a single run.
    """
    require_some("compare", 1 + len(others))
    runs = (first, *others)
    files = ((Path(one), one.records if isinstance(one, Recorded) else None) for one in runs)
    return Compared(compare_results(files))


def make_plan(urls: str | Sequence[str], **settings: Any) -> Plan:
    """A plan from the keys of a plan file, with units: ``make_plan(url, connections="100k", hold="8h", ramp="10/10ms")``.

    Raises :class:`~asyncli.errors.PlanError` with the key, the problem and the remedy.
    """
    plan = build_plan([Layer("plan: {key}", {**settings, "urls": urls})])
    require_limits(plan.fail_if, Summary)
    return plan


def lab_server(
    name: str | None = None, *, connections: int | str | None = None, keepalive: float | str = 60, **options: Any
) -> LabServer:
    """A local server: ``async with asyncli.lab_server("nginx", connections="10k") as server: ...``. It ends with the block.

    ``name``: "nginx", "nginx-proxy", "apache-prefork", "apache-event", "haproxy" or "builtin"; None: an nginx with stub_status,
    else the built-in one. ``connections``: how many it must hold (None: 100,000 on nginx and the built-in one, less on others).
    ``keepalive``: its timeout is ten times these seconds (or "1h"). Raises PlanError for a bad argument,
    :class:`~asyncli.errors.HostError` where it cannot start.
    """
    from asyncli import lab
    from asyncli.units import parse_count, parse_duration

    try:
        seconds = parse_duration(keepalive)
        if connections is not None:
            options["connections"] = parse_count(connections)
    except ValueError as error:
        raise PlanError(f"lab_server: {error}") from None
    return lab.choose(name, keepalive_s=seconds, **options)


async def soak(
    aim: str | Sequence[str] | LabServer | Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool | None = None,
    cluster: Any = None,
    **settings: Any,
) -> Recorded:
    """Soak in the running loop, and return the recorded run: ``run = await asyncli.soak(plan)`` in a notebook's cell.

    ``aim``: a :class:`Plan`; or URLs or a running lab server, with the plan's keys as ``settings`` (``connections="10k",
    hold="30s"``). ``out``: a new file, by default ``asyncli-<time>.db`` here. ``progress``: show it while it runs; None: only in
    a notebook, True: also elsewhere (a line every ten seconds on standard error). ``cluster``: open the connections from a Dask
    cluster's hosts: its client, or its address (docs/cluster.md).

    Cancelling ends it at once, and the file is whole up to there. Raises :class:`~asyncli.errors.AsyncliError` for a wrong plan,
    a refusing preflight, or an existing file.
    """
    try:
        from asyncli.app.soak import KnownServer, Soak
    except ImportError as error:
        raise HostError(f"soaking needs Linux ({error}); a run file can be read anywhere: asyncli.load(path)") from None
    plan = _plan_of(aim, settings)
    target = None if isinstance(aim, Plan | str | Sequence) else KnownServer(aim.label, aim.pid)
    path = free_name() if out is None else Path(out)
    observer: LiveObserver
    if progress is not False and kernel_shell() is not None:
        observer = NotebookObserver(plan)
    else:
        observer = LogObserver(plan) if progress else LiveObserver(plan)
    fleet = None
    if cluster is not None:
        from asyncli.cluster.link import Cluster

        fleet = Cluster.of(cluster)
    run = Soak.shown_by(observer, plan, path, target=target, cluster=fleet)
    try:
        await run.run()
    except BaseException:
        # Interrupted: the output on the page must not look live.
        if run.started and isinstance(observer, NotebookObserver):
            observer.end(f"ended before its end; what was recorded: asyncli.load({os.fspath(run.out)!r})")
        raise
    recorded = await asyncio.to_thread(load, run.out)
    if isinstance(observer, NotebookObserver):
        observer.end(f"{recorded.verdict}: {why(recorded.summary)} ({recorded.path.name})")
    return recorded


def _plan_of(aim: str | Sequence[str] | LabServer | Plan, settings: dict[str, Any]) -> Plan:
    if isinstance(aim, Plan):
        if settings:
            beside = ", ".join(settings)
            raise PlanError(f"soak: a plan is whole already, and {beside} came beside it; give URLs instead of a plan")
        return _checked(aim)
    if isinstance(aim, str | Sequence):
        return make_plan(aim, **settings)
    if not hasattr(aim, "status_url"):
        raise PlanError(f"soak: {aim!r} is nothing to aim at; give a URL, a plan or a lab server")
    status = {} if aim.status_url is None else {"status_url": aim.status_url}
    authority = {} if aim.authority is None else {"ca": str(aim.authority)}
    return make_plan(aim.url, **{**status, **authority, "server_pid": aim.pid, **settings})


def _checked(plan: Plan) -> Plan:
    """A plan may have been made without :func:`make_plan`, which checks it."""
    try:
        checked = load_plan(plan_document(plan))
        if not checked.targets:
            raise PlanError("it has no URL")
    except (PlanError, TypeError, ValueError) as error:
        raise PlanError(
            f"soak: {str(error).removeprefix('recorded ')}; asyncli.make_plan(url, ...) makes one with units"
        ) from None
    return checked
