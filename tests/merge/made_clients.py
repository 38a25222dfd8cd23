"""Made-up clients of one server, as their run files would tell of them: each with its own clock, pace and poller."""

from __future__ import annotations

import random
from typing import Any

from asyncli.merge import Client
from asyncli.plan import Plan
from asyncli.records import Deaths, Finding, Phase, Sample, Tick
from asyncli.samples import Samples
from asyncli.store.reader import Run

URL = "http://10.0.0.8/"
WALL_S = 1_800_000_000.0


class Server:
    """What happened on the server, in true time: a counter of each kind is a sum of what its clients did until then."""

    def __init__(self, *clients: MadeClient) -> None:
        self.clients = clients

    def page(self, t_s: float) -> dict[str, float]:
        held = sum(one.held(t_s) for one in self.clients)
        opened = sum(one.opened(t_s) for one in self.clients)
        polls = sum(one.polls(t_s) for one in self.clients)
        pollers = [one for one in self.clients if one.poll and one.polls(t_s)]
        open_ = sum(t_s <= one.zero_s + one.end_s for one in pollers)
        return {
            "status.active": held + open_,
            "status.accepts": 700 + opened + len(pollers),
            "status.handled": 700 + opened + len(pollers),
            "status.requests": 4000 + sum(one.answered(t_s) for one in self.clients) + polls,
        }


class MadeClient:
    """Opens ``rate`` a second from ``zero_s + 5`` on, ``many`` in all, holds for ``hold_s``, and beats each second per ten held."""

    def __init__(
        self,
        name: str,
        many: int = 1000,
        rate: int = 100,
        zero_s: float = 0.0,
        hold_s: float = 20.0,
        *,
        wall_error_s: float = 0.0,
        boot: str | None = None,
        net: str | None = None,
        poll: bool = False,
        agent: dict[str, Any] | None = None,
        lost: int = 0,
        beats: float = 10.0,
        seed: int = 1,
        **plan: Any,
    ) -> None:
        self.name, self.many, self.rate, self.zero_s, self.hold_s = name, many, rate, zero_s, hold_s
        self.wall_error_s, self.boot, self.lost, self.beats = wall_error_s, boot, lost, beats
        # An agent's session has the page, and what it reads of the server's host, from there.
        self.net, self.agent, self.poll = net, agent, poll or agent is not None
        self.plan = Plan(urls=(URL,), connections=many, batch=10, interval_s=10 / rate, hold_s=hold_s, seed=seed, **plan)
        self.ramp_s, self.up_s = 5.0, 5.0 + many / rate
        self.drain_s = self.up_s + hold_s
        self.end_s = self.drain_s + 5.0
        self._random = random.Random(seed)

    def held(self, t_s: float) -> int:
        at = t_s - self.zero_s
        return 0 if at <= self.ramp_s or at > self.drain_s else min(self.many, int(round(at - self.ramp_s, 6) * self.rate))

    def opened(self, t_s: float) -> int:
        return min(self.many, max(0, int(round(t_s - self.zero_s - self.ramp_s, 6) * self.rate)))

    def answered(self, t_s: float) -> int:
        at = round(min(t_s - self.zero_s, self.drain_s), 6)
        ramp = min(max(0.0, at - self.ramp_s), self.many / self.rate)
        return int(self.rate * ramp**2 / 2 / self.beats + max(0.0, at - self.up_s) * self.many / self.beats)

    def polls(self, t_s: float) -> int:
        """Made by then; the first before the clock's zero."""
        return 0 if not self.poll or t_s < self.zero_s else 1 + int(min(t_s - self.zero_s, self.end_s - 0.01))

    def ticks(self) -> list[tuple[float, Tick]]:
        found = []
        for second in range(1, int(self.end_s - self.ramp_s)):
            low, high = self.zero_s + self.ramp_s + second - 1, self.zero_s + self.ramp_s + second
            tick = Tick(second=second, workers=1, held=self.held(high), cpu_user_s=0.01 * second)
            tick.opened = tick.started = self.opened(high) - self.opened(low)
            tick.sent = tick.answered = self.answered(high) - self.answered(low)
            tick.by_status[200] = tick.answered
            tick.latency_us.add_counts({1000 + second: tick.answered} if tick.answered else {})
            tick.lateness_us.add_counts({100 + second: tick.sent} if tick.sent else {})
            if high > self.zero_s + self.drain_s:
                tick.held_at_drain = self.many
            if second == 8 and self.lost:
                tick.deaths["reset"] = Deaths(count=self.lost)
                tick.deaths["reset"].age_s.add_counts({3: self.lost})
                tick.opened += self.lost
                tick.reopened = self.lost
            found.append((self.ramp_s + second + self._random.uniform(0.02, 0.3), tick))
        return found

    def samples(self, server: Server) -> Samples:
        rows, connects = [], 1.0
        at = self._random.uniform(0.0, 1.0)
        while at < self.end_s:
            took_s = self._random.uniform(0.0005, 0.004)
            own = {"kernel.socket_bytes": 1e6 + 4000.0 * self.held(self.zero_s + at), "tcp.OutSegs": 1e5 * self.many + at}
            if self.agent is not None:
                own = {f"client.{name}": value for name, value in own.items()}
                active = server.page(self.zero_s + at)["status.active"]
                own |= {"server.pss_bytes": 5e6 + 1000.0 * active, "kernel.socket_bytes": 4000.0 * active, "tcp.OutSegs": at}
            values = {"generator.uss_bytes": 20e6 + at, "generator.processes": 2.0, **own}
            if self.poll:
                values |= server.page(self.zero_s + at + took_s)
                values |= {"status.polls": float(self.polls(self.zero_s + at)), "status.connects": connects, "probe.status": took_s}
            rows.append(Sample(at, values))
            at += 1.0 + self._random.uniform(-0.01, 0.01)
        return columns(rows)

    def client(self, server: Server, **changes: Any) -> Client:
        phases = [
            Phase("baseline", 0.0, self.ramp_s), Phase("ramp", self.ramp_s, self.up_s), Phase("hold", self.up_s, self.drain_s),
            Phase("drain", self.drain_s, self.drain_s + 1), Phase("residue", self.drain_s + 1, self.end_s),
        ]  # fmt: skip
        wall_s = WALL_S + self.zero_s + self.wall_error_s
        clock = {"wall_s": wall_s, "boot_id": self.boot, "monotonic_s": 90.0 + self.zero_s if self.boot else None, "time_ns": "time:[1]"}
        environment: dict[str, Any] = {"host": f"host-{self.name}", "local": False, "workers": 2, "cpus": 4, "memory_bytes": 8e9, "clock": clock}
        environment["network"] = self.net
        if self.agent is not None:
            environment |= {"agent": {"url": "http://10.0.0.8:9165", **self.agent}, "server": {"label": "nginx/1.22.1"}}
        run = Run(
            id=f"run-{self.name}", started="2027-01-15T08:00:00Z", plan=self.plan, environment=environment, phases=phases,
            ticks=self.ticks(), samples=self.samples(server), findings=[Finding("slow", "info", f"said by {self.name}")], checks=[],
            complete=True, started_wall_s=wall_s,
        )  # fmt: skip
        for name, value in changes.items():
            setattr(run, name, value)
        return Client(self.name, run, [1.0])


def made(*clients: MadeClient) -> list[Client]:
    server = Server(*clients)
    return [one.client(server) for one in clients]


def columns(rows: list[Sample]) -> Samples:
    """As the reader of a run file gives them."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for place, row in enumerate(rows):
        for name, value in row.values.items():
            found.setdefault(name, ([], []))[0].append(place)
            found[name][1].append(value)
    return Samples([row.t_s for row in rows], found)
