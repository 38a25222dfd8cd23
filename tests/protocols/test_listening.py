"""Connections that listen, on the simulated network: those and only those with too long a silence are dead."""

from __future__ import annotations

import pytest

from asyncli.core.life import BACKOFF, IDLE
from asyncli.engine.held_table import ConnectionTable
from asyncli.engine.shard import Shard, build_shard
from asyncli.engine.sim import SimNet, SimServer, simulate
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import Tick

ROWS = 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT, RETRY = b"data: hello\n\n", b"retry: 3000\n"


class Source(SimNet):
    """Accepts each request after 10 ms, and then sends ``words``: (seconds later, bytes); b"" ends the stream."""

    def __init__(self, *words: tuple[float, bytes], connect_s: float = 0.0) -> None:
        super().__init__(SimServer(connect_s=connect_s))
        self.words = words

    def send(self, handle: int, data: bytes) -> int:
        taken = super().send(handle, b"") or len(data)
        granted = self.now + 0.01
        for after, word in [(0.0, HEAD), *self.words] if data else []:
            self._at(granted + after, handle, "data", word)
        return taken


def shard(silence: str = "5s", *, reopen: bool = False, local: bool = True) -> Shard:
    plan = build_plan([Layer("--{key}", {"urls": ["http://127.0.0.1/"], "connections": ROWS, "protocol": "sse", "silence": silence, "reopen": reopen, "seed": 1})])
    return build_shard(plan, Spread((Destination(2, "127.0.0.1", 80),), (), 1, local, 1000))


def soaked(net: Source, hold_s: float = 60.0, silence: str = "5s", *, reopen: bool = False) -> Tick:
    total, tick = Tick(), Tick()
    for tick in simulate(shard(silence, reopen=reopen, local=not net.server.connect_s), net.server, hold_s, net=net):
        total.merge_counts(tick)
    assert total.sent == total.answered == 0
    total.held_at_drain = tick.held_at_drain
    return total


def driven(net: Source, seconds: float, silence: str = "5s", *, reopen: bool = False, stalls: tuple[float, float] = (0.0, 0.0)) -> Tick:
    """Turn ten times a second except in a stall, and check the wheel's count after each."""
    table = ConnectionTable(shard(silence, reopen=reopen), 0, net)
    table.start(0.0)
    rows = table._connections
    for step in range(int(seconds * 10)):
        net.advance(step / 10)
        if not stalls[0] <= net.now < stalls[1]:
            table.turn()
            assert len(rows.wheel) == sum(state in (IDLE, BACKOFF) for state in rows.state)
    return table.take_tick(0)


@pytest.mark.parametrize("connect_s", [0.0, 0.01])
def test_a_connection_is_dead_after_the_longest_silence(connect_s: float) -> None:
    total = soaked(Source(connect_s=connect_s))
    assert {cause: deaths.count for cause, deaths in total.deaths.items()} == {"heartbeat_timeout": ROWS}
    dead = total.deaths["heartbeat_timeout"]
    assert dead.age_s.least == dead.age_s.greatest == dead.idle_s.least == dead.idle_s.greatest == 5


def test_silence_counts_from_the_last_message() -> None:
    total = soaked(Source((4.0, EVENT), (6.0, b": ping\n"), (7.0, b":")))
    dead = total.deaths["heartbeat_timeout"]
    assert dead.count == ROWS
    assert (dead.age_s.least, dead.age_s.greatest, dead.idle_s.least, dead.idle_s.greatest) == (12, 12, 5, 5)
    assert total.protocol is not None
    assert (total.protocol.messages, total.protocol.message_bytes) == (ROWS, 5 * ROWS)


@pytest.mark.parametrize("pause_s", [0.3, 4.0, 4.999])
def test_a_message_in_time_keeps_a_connection(pause_s: float) -> None:
    total = soaked(Source(*((pause_s * number, EVENT) for number in range(1, int(70 / pause_s)))))
    assert not total.deaths
    assert total.held_at_drain == ROWS
    assert total.heard_ms.count == ROWS
    assert total.heard_ms.greatest <= pause_s * 1e3 + 1


def test_a_message_read_at_the_deadline_keeps_a_connection() -> None:
    total = soaked(Source((5.0, EVENT)), 9.0)
    assert (total.held_at_drain, total.deaths) == (ROWS, {})


def test_an_end_read_at_the_deadline_is_an_end() -> None:
    total = soaked(Source((5.0, b"")))
    assert {cause: deaths.count for cause, deaths in total.deaths.items()} == {"closed_idle": ROWS}


def test_without_a_limit_silence_kills_no_connection() -> None:
    total = soaked(Source(), 4_000.0, "forever")
    assert not total.deaths
    assert (total.held_at_drain, total.opened) == (ROWS, ROWS)


def test_a_message_in_time_that_is_read_late_keeps_a_connection() -> None:
    total = driven(Source((3.0, EVENT)), 26.0, stalls=(1.0, 21.0))
    assert (total.held, dict(total.deaths)) == (ROWS, {})
    # Without a message it is dead all the same.
    assert driven(Source(), 26.0, stalls=(1.0, 21.0)).deaths["heartbeat_timeout"].count == ROWS


@pytest.mark.parametrize("words", [(), ((2.0, b""),), ((2.0, EVENT), (3.0, b"")), ((5.0, b""),), ((2.0, b"data: " + b"x" * 10_000),)])
def test_lost_connections_are_reopened(words: tuple[tuple[float, bytes], ...]) -> None:
    total = driven(Source(*words), 40.0, reopen=True)
    lost = sum(deaths.count for deaths in total.deaths.values())
    assert lost >= 2 * ROWS
    assert total.opened == ROWS + total.reopened
    assert total.held == total.opened - lost


def test_a_stream_that_had_events_is_reopened_soon() -> None:
    spoke, silent = (driven(Source(*words, (1.0, b"")), 60.0, reopen=True).reopened for words in ([(0.5, EVENT)], []))
    # The backoff is 0.5 s to 1 s each time; a row that never had a message waits longer each time.
    assert spoke > 30 * ROWS
    assert silent < 10 * ROWS


def test_a_stream_is_reopened_no_sooner_than_its_retry_time() -> None:
    # Each row waits 3.25 s to 3.75 s: all but the first read what another has read.
    total = driven(Source((0.3, EVENT), (0.5, RETRY), (1.0, b"")), 60.0, reopen=True)
    assert 12 * ROWS < total.reopened < 15 * ROWS
