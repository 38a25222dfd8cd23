"""Sizing by a run of known costs."""

from __future__ import annotations

import math

import msgspec
import pytest
from synthetic_run import FIXED, KERNEL_END, REST, SERVER, a_run, without

from asyncli.analysis.cost import costs
from asyncli.analysis.forecast import RESERVE, forecast
from asyncli.analysis.sizing import SizedLimit, Sizing, size
from asyncli.model.run import Run

MILLION = 1_000_000


def sized(run: Run, connections: int = MILLION, host_bytes: float | None = 64e9) -> Sizing:
    known = costs(run)
    measured = round(max(run.held.values))
    return size(known, forecast(run, known)[0], connections=connections, measured=measured, host_bytes=host_bytes)


def test_the_memory_of_a_million_by_the_lines_of_a_run() -> None:
    found = sized(a_run(100_000, hold_s=10.0, noise=0.1))
    parts = {part.name: part.bytes for part in found.parts}
    # One end of the kernel's two: the clients are elsewhere.
    assert parts["server_user"] == pytest.approx(FIXED["server"] + SERVER * MILLION, rel=0.01)
    assert parts["kernel"] == pytest.approx(FIXED["kernel"] / 2 + KERNEL_END * MILLION, rel=0.01)
    assert found.total_bytes == pytest.approx(sum(parts.values()))
    low, high = found.ci95
    assert low < found.total_bytes < high
    # All of the residual may be the server's.
    assert high >= found.total_bytes + REST * MILLION
    assert (found.measured, round(found.factor), found.unknown) == (100_000, 10, [])


@pytest.mark.parametrize(("host_bytes", "hosts"), [(64e9, 1), (4e9, 2), (1e9, 7)])
def test_each_host_has_the_fixed_part_and_keeps_a_tenth_free(host_bytes: float, hosts: int) -> None:
    found = sized(a_run(100_000, hold_s=10.0, noise=0.1), host_bytes=host_bytes)
    each = SERVER + KERNEL_END
    fixed = FIXED["server"] + FIXED["kernel"] / 2
    assert found.hosts == math.ceil(each * MILLION / (host_bytes * (1 - RESERVE) - fixed)) == hosts
    least, most = found.hosts_ci95
    assert least <= hosts <= most


def test_a_host_that_is_too_small_for_the_server_alone() -> None:
    found = sized(a_run(100_000, hold_s=10.0), host_bytes=50e6)
    assert (found.hosts, found.hosts_ci95, found.host_too_small) == (None, None, True)
    assert not sized(a_run(100_000, hold_s=10.0), host_bytes=64e9).host_too_small


@pytest.mark.parametrize("is_hidden", [False, True], ids=["all parts are measured", "the server's part is hidden"])
def test_a_residual_beyond_all_parts_is_in_no_total(is_hidden: bool) -> None:
    """On a busy host other programs may hold it: such a total is nobody's size."""
    run = a_run(100_000, hold_s=10.0, noise=0.1)
    known = costs(run)
    assert known.residual is not None
    known.residual = msgspec.structs.replace(known.residual, ci95=(-400e3, 600e3))
    if is_hidden:
        known.server_user = msgspec.structs.replace(known.server_user, bytes_per_connection=50.0, ci95=(-30.0, 134.0))
    found = size(known, forecast(run, known)[0], connections=MILLION, measured=100_000, host_bytes=64e9)
    assert found.rest_at_most_bytes == pytest.approx(600e9)
    assert "600 GB" in found.rest_unknown
    assert (found.total_bytes, found.at_most_bytes, found.hosts_ci95) == (None, None, None)
    assert (found.at_least_bytes is None) == is_hidden
    assert found.hosts == (None if is_hidden else 1)


def test_a_wide_interval_is_told_in_place_of_its_middle() -> None:
    run = a_run(100_000, hold_s=10.0, noise=0.1)
    known = costs(run)
    assert not any(part.is_wide for part in sized(run).parts)
    known.server_user = msgspec.structs.replace(known.server_user, bytes_per_connection=21e3, ci95=(1e3, 41e3))
    found = size(known, forecast(run, known)[0], connections=MILLION, measured=100_000, host_bytes=64e9)
    assert [part.name for part in found.parts if part.is_wide] == ["server_user"]


@pytest.mark.parametrize(("allows", "factor"), [(20_000.0, 50.0), (0.0, math.inf)])
def test_a_limit_says_by_how_much_it_must_be_raised(allows: float, factor: float) -> None:
    limit = SizedLimit("descriptors", allows, 1e6, "")
    assert (limit.suffices, limit.factor) == (False, factor)


def test_an_unknown_part_has_its_reason_and_leaves_no_total() -> None:
    found = sized(without(a_run(100_000, hold_s=10.0), "server.pss", "server.rss"))
    (part,) = found.unknown
    assert part.name == "server_user"
    assert part.why
    assert (found.total_bytes, found.hosts) == (None, None)
    assert {one.name: one.bytes is not None for one in found.parts} == {"server_user": False, "kernel": True}


def test_a_part_that_noise_hides_has_an_upper_bound_and_the_whole_too() -> None:
    run = a_run(100_000, hold_s=10.0, noise=0.1)
    known = costs(run)
    known.server_user = msgspec.structs.replace(known.server_user, bytes_per_connection=50.0, ci95=(-30.0, 134.0))
    found = size(known, forecast(run, known)[0], connections=MILLION, measured=100_000, host_bytes=64e9)
    (part,) = found.unknown
    assert (part.bytes, part.ci95) == (None, (0.0, pytest.approx(known.server_user.fixed_bytes + 134.0 * MILLION)))
    kernel = next(one for one in found.parts if one.name == "kernel")
    assert found.total_bytes is None
    assert found.at_most_bytes == pytest.approx(part.ci95[1] + kernel.ci95[1] + max(0.0, known.residual.ci95[1]) * MILLION)


@pytest.mark.parametrize(("gogc", "times"), [(None, 1), (-1, 1), (100, 2), (400, 5)])
def test_a_heap_of_go_fills_to_what_gogc_allows(gogc: int | None, times: float) -> None:
    """A cost at the goal was not told: the ramp had too few collections."""
    run = a_run(100_000, hold_s=10.0, noise=0.1)
    known = costs(run)
    found = size(known, forecast(run, known)[0], connections=MILLION, measured=100_000, host_bytes=64e9, gogc=gogc)
    user = known.server_user
    low, high = found.parts[0].ci95
    assert low == pytest.approx(user.fixed_bytes + user.ci95[0] * MILLION)
    assert high == pytest.approx(user.fixed_bytes + times * user.ci95[1] * MILLION)
    assert found.parts[0].is_wide == (times > 1)
