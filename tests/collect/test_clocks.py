"""The clock watch: a suspension, a step of the wall clock, a hung process, and no false finding."""

from __future__ import annotations

import time
from typing import Any

import pytest

from asyncli.collect.clocks import Clocks, ClockWatch
from asyncli.model.records import Finding, Sample


class Machine:
    """Three clocks that a test moves."""

    def __init__(self) -> None:
        self.monotonic_s, self.boot_s, self.wall_s = 1000.0, 1500.0, 1_800_000_000.0
        self.findings: list[Finding] = []
        self.samples: list[Sample] = []
        self.legible = True
        self.watch = ClockWatch(lambda: self.monotonic_s - 1000.0, on_sample=self.samples.append, on_finding=self.findings.append, read=self.read)

    def read(self) -> Clocks | None:
        return Clocks(self.monotonic_s, self.boot_s, self.wall_s) if self.legible else None

    def goes_on(self, seconds: float, *, slept: float = 0.0, stepped: float = 0.0) -> list[str]:
        """Compare the clocks after so many seconds awake; the codes of the findings."""
        self.monotonic_s += seconds
        self.boot_s += seconds + slept
        self.wall_s += seconds + slept + stepped
        self.findings.clear()
        self.watch.compare()
        return [one.code for one in self.findings]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield Machine()
    monkeypatch.undo()
    time.tzset()


def test_a_slewed_clock_is_no_finding(machine: Machine) -> None:
    for _ in range(1000):
        assert machine.goes_on(1.0, stepped=0.09) == []  # chrony slews it
    assert machine.goes_on(4.9) == []
    assert machine.samples == []


def test_a_suspension_has_its_start_end_and_length(machine: Machine) -> None:
    machine.goes_on(65.0)
    assert machine.goes_on(1.0, slept=60.0) == ["suspended"]
    (one,) = machine.findings
    local = {"from_local": "2027-01-15 09:01:06", "to_local": "2027-01-15 09:02:06"}
    assert one.fields == {"at_s": 66.0, "for_s": 60.0, **local}
    assert machine.goes_on(1.0) == []
    assert machine.goes_on(1.0, slept=2.0) == ["suspended"]
    assert machine.samples == [Sample(66.0, {"clock.suspended_s": 60.0}), Sample(68.0, {"clock.suspended_s": 2.0})]


@pytest.mark.parametrize(("stepped", "to_local"), [(3600.0, "2027-01-15 10:00:01"), (-3600.0, "2027-01-15 08:00:01")])
def test_a_step_of_the_wall_clock(machine: Machine, stepped: float, to_local: str) -> None:
    assert machine.goes_on(1.0, stepped=stepped) == ["clock_stepped"]
    assert machine.findings[0].fields == {"at_s": 1.0, "by_s": stepped, "to_local": to_local}
    assert machine.goes_on(1.0) == []


def test_suspension_with_a_step_a_stall_and_a_failed_reading(machine: Machine) -> None:
    assert machine.goes_on(1.0, slept=60.0, stepped=-2.0) == ["suspended", "clock_stepped"]
    assert machine.goes_on(12.0) == ["session_stalled"]
    assert machine.findings[0].fields == {"whose": "session", "until_s": 13.0, "for_s": 12.0}
    machine.legible = False
    assert machine.goes_on(1.0, slept=30.0) == []
    machine.legible = True
    # The next comparison finds what a failed reading could not.
    assert machine.goes_on(1.0) == ["suspended"]
