"""Memory of other programs on the host: what they take by themselves is no cost, and whatever else they take may be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from synthetic_run import GENERATOR, KERNEL_END, REST, SERVER, a_run

from asyncli.analysis.cost_parts import Costs
from asyncli.model.run import Run
from asyncli.report.analyses import analyse

ALONE = SERVER + 2 * KERNEL_END + GENERATOR + REST
N = 2000
#: Bytes that other programs have beyond what they had at first, by the time (s) and the connections that were ever held.
Taken = Callable[[float, float], float]


def beside(taken: Taken, *, noise: float = 0.1, **options: Any) -> Run:
    """Two thousand connections in 20 s, and other programs that took memory."""
    run = a_run(N, **{"hold_s": 60.0, "batch": 10, "interval_s": 0.1, "processes": True, "noise": noise, **options})
    opened = 0.0
    for sample in run.samples:
        opened = max(opened, (run.held.at(sample.t_s) or 0.0) if sample.t_s > run.first_connect_s else 0.0)
        for name in {"host.used_bytes", "host.processes_bytes"} & sample.values.keys():
            sample.values[name] += taken(sample.t_s, opened)
    return run


def told(cost: Costs) -> set[str]:
    return {one.code for one in cost.findings}


SHAPES = [{}, {"plateaus": 5, "plateau_s": 10.0}, {"interval_s": 0.01}]


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("each", [500.0, 5000.0, 12_000.0])
def test_memory_that_others_take_in_step_may_be_the_connections(each: float, options: dict[str, Any]) -> None:
    """A daemon of the server that holds none of them, or a stranger: of a line, of plateaus, of two levels."""
    cost = analyse(beside(lambda _, opened: each * opened, **options)).costs
    low, high = cost.host_total.ci95
    assert low <= ALONE < ALONE + 0.97 * each <= high
    assert low <= cost.host_total.bytes_per_connection <= high
    assert ("processes_rise" in told(cost)) is (each > 0.2 * ALONE)
    if cost.residual is not None:
        assert cost.residual.ci95[0] <= REST < REST + 0.97 * each <= cost.residual.ci95[1]
    # The measured parts are as they were.
    assert cost.server_user.bytes_per_connection == pytest.approx(SERVER, rel=0.1)


def test_most_of_the_host_may_be_others() -> None:
    cost = analyse(beside(lambda _, opened: 10 * ALONE * opened)).costs
    assert (cost.host_total, cost.residual) == (None, None)
    assert "cost_of_others" in told(cost)
    # What is unknown has no interval to speak of.
    assert "processes_rise" not in told(cost)


@pytest.mark.parametrize("options", SHAPES[:2])
@pytest.mark.parametrize("per_s", [300_000.0, -300_000.0])
def test_memory_that_others_take_by_the_clock_is_no_cost(per_s: float, options: dict[str, Any]) -> None:
    """Before the first connect, in the ramp and in the hold: the numbers are those of a quiet host."""
    quiet = analyse(beside(lambda *_: 0.0, **options)).costs
    cost = analyse(beside(lambda t_s, _: per_s * t_s, **options)).costs
    for name, true in (("host_total", ALONE), ("residual", REST)):
        known, of_quiet = getattr(cost, name), getattr(quiet, name)
        assert known.bytes_per_connection == pytest.approx(of_quiet.bytes_per_connection, abs=5), name
        assert known.half_width == pytest.approx(of_quiet.half_width, rel=0.05), name
        assert known.ci95[0] <= true <= known.ci95[1], name
    assert told(cost) == {"processes_excluded"}
    assert cost.residue.host_total == pytest.approx(analyse(beside(lambda *_: 0.0, **options)).costs.residue.host_total, rel=0.01)


@pytest.mark.parametrize("taken", [
    lambda t_s, opened: 3e5 * min(25.0, max(0.0, t_s - 5.0)),
    lambda t_s, opened: 3e5 * max(0.0, t_s - 5.0),
    lambda t_s, opened: 3e5 * min(t_s, 25.0),
], ids=["in the ramp alone", "from the ramp on", "until the ramp's end"])  # fmt: skip
def test_a_pace_that_is_not_the_same_before_and_after_the_ramp_proves_nothing(taken: Taken) -> None:
    cost = analyse(beside(taken)).costs
    low, high = cost.host_total.ci95
    assert low <= ALONE < ALONE + 0.97 * 3e5 * 20 / N <= high


def test_memory_that_others_take_some_time_after_the_accept_may_be_the_connections() -> None:
    """As a server that takes memory late: the level at the hold's end is reached. What they take there steadily is no cost."""
    late = analyse(beside(lambda t_s, opened: 5000.0 * opened * (t_s > 40.0))).costs
    assert late.host_total.ci95[0] <= ALONE < ALONE + 4900 <= late.host_total.ci95[1]
    steady = analyse(beside(lambda t_s, _: 1e5 * max(0.0, t_s - 25.0))).costs
    assert steady.host_total.ci95[1] < 1.05 * ALONE


def test_what_others_free_in_the_ramp_makes_no_connection_cheaper() -> None:
    cost = analyse(beside(lambda _, opened: -2000.0 * opened)).costs
    low, high = cost.host_total.ci95
    assert low <= ALONE - 1900 < ALONE <= high
    assert "processes_rise" in told(cost)


def test_a_quiet_host_has_no_wider_interval() -> None:
    for seed in range(5):
        quiet = analyse(beside(lambda *_: 0.0, noise=1.0, seed=seed)).costs.host_total
        unread = analyse(beside(lambda *_: 0.0, noise=1.0, seed=seed, processes=False)).costs.host_total
        assert quiet.ci95 == pytest.approx(unread.ci95, rel=1e-6)


def in_kernel(each: float, **per_connection: float) -> Run:
    """A run with ``each`` bytes more of the kernel's socket caches for each connection, and so much of further metrics."""
    run = a_run(N, hold_s=60.0, batch=10, interval_s=0.1, noise=0.1)
    for sample in run.samples:
        held = (run.held.at(sample.t_s) or 0.0) if sample.t_s > run.first_connect_s else 0.0
        for name in {"host.used_bytes", "kernel.socket_bytes"} & sample.values.keys():
            sample.values[name] += each * held
        sockets = sample.values["kernel.tcp_inuse"]
        sample.values |= {"kernel.sockets": 300.0 + sockets, "kernel.files_bytes": 1e6}
        for name, more in per_connection.items():
            sample.values[name.replace("__", ".")] += more * held
    return run


FILE = 256.0


@pytest.mark.parametrize("files", [3, 20])
def test_files_that_others_open_are_no_part_of_an_end(files: int) -> None:
    """A program that fills pipes has two open files of each, in the cache of the sockets' own."""
    quiet = analyse(in_kernel(0.0)).costs.kernel
    assert quiet.half_width < 100
    found = analyse(in_kernel(files * FILE, kernel__files_bytes=files * FILE)).costs
    low, high = found.kernel.ci95
    assert low <= KERNEL_END < KERNEL_END + 0.9 * files * FILE / 2 <= high
    assert found.host_total is None or found.host_total.ci95[0] <= ALONE < found.host_total.ci95[1]


def test_unix_sockets_of_others_are_sockets_of_others() -> None:
    each = 2400.0
    found = analyse(in_kernel(each, kernel__sockets=1.0)).costs
    low, high = found.kernel.ci95
    assert low <= KERNEL_END < KERNEL_END + 0.9 * each / 2 <= high
