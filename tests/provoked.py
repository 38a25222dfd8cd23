"""Soaks on a real nginx with one injected fault, and their records and reports. Several run at the same time, since they mostly
wait."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import fault_table
import pytest
from namespaces import SERVER, Cable
from programs import SHORT, Done, Program, recorded, report, run, until

from asyncli.analysis.losses.attribution import diagnose
from asyncli.analysis.totals import fold
from asyncli.findings.losses import describe_loss
from asyncli.lab.child import group_alive
from asyncli.lab.nginx import LabNginx
from asyncli.model.run import Run
from asyncli.store.reader import read_run

Soak = TypeVar("Soak", bound="Callable[[Path], Told]")
N = 100
# Soaks that run at the same time: each takes some seconds, mostly waiting, and less than 0.5 s of CPU to start.
SIDE_BY_SIDE = 8


class Nginx(LabNginx):
    """The lab's nginx with changes to its configuration: ``replace`` maps old texts to new ones."""

    def __init__(self, replace: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(**{"connections": 1000, "workers": 2, **options})
        self.replace = replace or {}
        self._again = ExitStack()

    def _config(self) -> str:
        text = super()._config()
        for old, new in self.replace.items():
            assert old in text
            text = text.replace(old, new)
        return text

    @property
    def at(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def status_at(self) -> tuple[str, int]:
        return "127.0.0.1", self.status_port

    def worker(self) -> int:
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()[0])

    def kill(self, number: int) -> None:
        """Send a signal to all its processes."""
        os.killpg(self.pid, number)

    def start_again(self) -> int:
        """Wait until all its processes have ended, then start it again with the same configuration; returns the pid. It ends with
        :meth:`stop`."""
        until(lambda: not group_alive(self.pid), "it ends")
        again = subprocess.Popen(self._argv())
        self._again.callback(again.wait)
        self._again.callback(again.terminate)
        return again.pid

    async def stop(self) -> None:
        self._again.close()
        await super().stop()


@contextmanager
def an_nginx(**options: Any) -> Iterator[Nginx]:
    # Its own runner: soaks of several tests run at the same time, each in a thread.
    server = Nginx(**options)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            yield server
        finally:
            runner.run(server.stop())


@contextmanager
def an_nginx_at_the_end_of(cable: Cable, **options: Any) -> Iterator[Nginx]:
    """An nginx in the server's namespace; its status page answers on both cables."""
    with cable.inside("server"), an_nginx(address=SERVER, replace={"listen 127.0.0.1:": "listen 0.0.0.0:"}, **options) as server:
        yield server


class Fault(NamedTuple):
    """A soak with an injected fault, and the diagnosis that most of its losses must have."""

    soak: Callable[[Path], Told]
    code: str
    certain: bool
    share: float
    cable: bool


class OwnStandstills:
    """When this process stood still, in which the boxes on the way run, and which begins and ends the faults: a thread looks at the clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        before_s = time.time()
        while not self._ended.wait(0.05):
            now_s = time.time()
            if now_s - before_s > 0.5:
                self._spans.append((before_s, now_s))
            before_s = now_s

    @property
    def any_was(self) -> bool:
        return bool(self._spans)

    def in_run(self, run: Run) -> bool:
        """Whether it did while the run had connections: these met another fault than the one that was asked for."""
        from_s, to_s = run.started_wall_s + run.first_connect_s, run.started_wall_s + run.end_s
        return any(begun_s < to_s and ended_s > from_s for begun_s, ended_s in self._spans)


class Faults(dict[str, Fault]):
    """The faults of a module, by the names of their functions."""

    def __init__(self) -> None:
        super().__init__()
        self.standstills = OwnStandstills()

    def register(self, code: str = "", *, certain: bool = False, share: float = 0.9, cable: bool = False) -> Callable[[Soak], Soak]:
        """``@register(code)``: at least ``share`` of the soak's losses have this diagnosis. ``cable``: it needs namespaces."""

        def keep(soak: Soak) -> Soak:
            self[soak.__name__] = Fault(soak, code, certain, share, cable)
            return soak

        return keep

    def params(self) -> list[Any]:
        """A pytest parameter for each fault."""
        return [pytest.param(name, marks=[pytest.mark.namespaces] if one.cable else []) for name, one in self.items()]

    def start(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
        """Start the selected ones, some at a time."""
        wanted = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]
        with self.standstills.watched(), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            futures = {name: pool.submit(self[name].soak, factory.mktemp(name)) for name in wanted}
            yield futures
            for future in futures.values():
                future.cancel()

    def judge(self, name: str, told: Told) -> None:
        """Require the fault's diagnosis for most losses, and the sentences of docs/reference/faults.md in the report; the counts of a soak add
        up in any case."""
        told.show()
        if self.standstills.in_run(told.run):
            return
        code, certain, share = self[name][1:4]
        if code:
            found = [(one.code, one.certain, one.count) for one in told.diagnoses]
            assert sum(one[2] for one in found if one[:2] == (code, certain)) >= share * sum(one[2] for one in found) > 0, found
        fault_table.require_as_written(name, told.summary)


def arguments(url: str, server: Nginx, *more: str, hold: str, keepalive: str = "4") -> list[str]:
    asked = ["soak", url, *SHORT[:4], "-c", str(N), "--ramp", "20/100ms", "--out", "run.db", "--quiet", "--force", "--hold", hold]
    named = [] if any(one.startswith("--server-p") for one in more) else ["--server-pid", str(server.pid)]
    return [*asked, "-k", keepalive, "--status-url", server.status_url, *named, "--seed", "7", *more]


def soaked(folder: Path, server: Nginx, *more: str, hold: str = "3", url: str | None = None, keepalive: str = "4", status: int = 99) -> Told:
    """Run a short soak with losses to its end."""
    done = run(folder, *arguments(url or server.url, server, *more, hold=hold, keepalive=keepalive))
    require_ended(folder, done, status)
    return Told(folder)


class Held:
    """A soak that holds until it is stopped, observed through its run file."""

    def __init__(self, program: Program, file: Path) -> None:
        self.program, self._file = program, file

    def until_held(self, least: int, for_s: int = 0) -> None:
        """Wait until so many are held, and were for so many seconds before."""

        def there() -> bool:
            last = self.ticks[-1 - for_s :]
            return len(last) > for_s and all(tick.held >= least for _, tick in last)

        self._until(there, f"{least} are held")

    def until_whole(self) -> None:
        """Wait for what is read in two more seconds, and until all are held and were for two: a process that stands still on a busy machine
        loses some anew."""
        self.seconds(2.0)
        self.until_held(N, for_s=2)

    def until_lost(self, more: int) -> None:
        """Wait until so many are lost in all."""
        self._until(lambda: self.lost >= more, f"{more} are lost")

    def until_failed(self, least: int) -> None:
        """Wait until so many connects have failed in all."""
        self._until(lambda: sum(sum(tick.failures.values()) for _, tick in self.ticks) >= least, f"{least} connects have failed")

    def until_found(self, code: str) -> None:
        """Wait until the run file has a finding with this code."""
        self._until(lambda: any(one.code == code for one in self._run.findings), f"{code} is found")

    def until_sampled(self, name: str, wanted: Callable[[float], bool]) -> None:
        """Wait until the last value of a metric satisfies ``wanted``."""

        def there() -> bool:
            values = [one.values[name] for one in self._run.samples if name in one.values]
            return bool(values) and wanted(values[-1])

        self._until(there, f"{name} is as wanted")

    def seconds(self, more: float) -> None:
        """Wait until so many more seconds are recorded."""
        since = self.last
        self._until(lambda: self.last >= since + more, f"{more} s more are on record")

    @property
    def ticks(self) -> Any:
        return self._run.ticks

    @property
    def lost(self) -> int:
        return sum(tick.lost for _, tick in self.ticks)

    @property
    def last(self) -> float:
        ticks = self.ticks
        return float(ticks[-1][0]) if ticks else 0.0

    @property
    def _run(self) -> Run:
        return self.program.until(lambda: recorded(self._file), "there is a run file")

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        self.program.until(happened, what)


@contextmanager
def holding(
    folder: Path, server: Nginx, *more: str, url: str | None = None, keepalive: str = "10", least: int = int(0.8 * N), status: int = 99
) -> Iterator[Held]:
    """A soak that has held at least ``least`` connections for some seconds; it is stopped, drained and ended after the block."""
    asked = arguments(url or server.url, server, *more, hold="forever", keepalive=keepalive)
    with Program(folder, *asked) as program:
        held = Held(program, folder / "run.db")
        if least:
            held.until_held(least)
            # For some samples before the fault, and heartbeats that are spread.
            held.seconds(2.0)
        yield held
        program.signal()
        done = program.wait()
        program.until_gone()
    require_ended(folder, done, status)


def require_ended(folder: Path, done: Done, status: int) -> None:
    """Require this status; on a busy machine the run may have been late and so invalid, but its counts are exact."""
    late = done.status == 4 and report(folder, "run.db")["generator"]["saturated"]
    assert (done.status == status or late, done.err) == (True, ""), done


def struck(folder: Path, server: Nginx, strike: Callable[[], object], least: int, *more: str, url: str | None = None, keepalive: str = "10") -> Told:
    """Run a soak, call ``strike`` in its hold, and stop it some seconds after ``least`` losses."""
    with holding(folder, server, *more, url=url, keepalive=keepalive) as held:
        before = held.lost
        strike()
        held.until_lost(before + least)
        held.seconds(2.0)
    return Told(folder)


class Told:
    """The records and the report of an ended run, whose counts must add up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = run = read_run(folder / "run.db")
        self.totals = fold(run)
        self.summary = report(folder, "run.db")
        #: The diagnoses of losses, and the findings: code -> evidence.
        self.diagnoses = diagnose(run, self.totals)
        self.findings = {one["code"]: one["evidence"] for one in self.summary["findings"]}
        self.connections = self.summary["connections"]
        self._adds_up()

    def show(self) -> None:
        """Print everything, for a failed test."""
        for one in (*self.diagnoses, *self.summary["findings"], self.connections, self.summary["reconciliation"], *self.run.ticks):
            print(one)

    def _adds_up(self) -> None:
        counts: dict[str, int] = {}
        for one in self.diagnoses:
            counts[one.cause] = counts.get(one.cause, 0) + one.count
            assert one.remedy
        assert counts == self.connections["deaths"]
        # Each cause has its own finding, or is in that of an incident with other causes.
        said = {code: evidence for code, evidence in self.findings.items() if code.startswith("lost_")}
        assert said.keys() <= {f"lost_{cause}" for cause in counts}
        for one in self.diagnoses:
            with_others = any(describe_loss(one.cause, one.count, self.run.plan.protocol) in evidence for evidence in said.values())
            assert f"lost_{one.cause}" in said or with_others, one
        self._counts_are_exact()
        self.does_not_hammer()

    def _counts_are_exact(self) -> None:
        """Check counts for each second and their sums; a second may be missing only if its tick reports a stall of that length."""
        ticks = [tick for _, tick in self.run.ticks]
        for before, tick in itertools.pairwise(ticks):
            missing = tick.second - before.second - 1
            assert missing == 0 or 0 < missing <= tick.longest_turn_s + 0.1, tick
        for before, tick in itertools.pairwise(ticks):
            if tick.held_at_drain or tick.drained:
                break
            assert tick.held == before.held + tick.opened - tick.lost, tick.second
        told, beats = self.connections, self.summary["heartbeats"]
        assert told["lost"] == sum(told["deaths"].values())
        assert told["failed"] == sum(told["failures"].values())
        # A connect pending at the start of the drain may still succeed: it is neither lost nor held at the hold's end.
        late = self.totals.during("drain").opened
        assert 0 <= told["opened"] - told["lost"] - told["held"] <= late
        assert beats["sent"] == beats["answered"] + beats["failed"]
        assert sum(tick.started for tick in ticks) == told["opened"] + told["failed"]

    def attempts(self) -> list[int]:
        """Connects started in each second of the hold."""
        hold = next(one for one in self.run.phases if one.name == "hold")
        return [tick.started for t_s, tick in self.run.ticks if hold.start_s + 1.0 < t_s <= (hold.end_s or t_s)]

    def does_not_hammer(self) -> None:
        """Require at most about one connect per connection and second, and a backoff that doubles with each failure."""
        attempts = self.attempts()
        assert max(attempts, default=0) <= 1.5 * N
        # The backoff begins with 0.5 s, jittered down to half: at least 0.25 s, 0.5 s, 1 s...
        assert sum(attempts) <= N * (2.0 + math.log2(1.0 + len(attempts) / 0.25))
