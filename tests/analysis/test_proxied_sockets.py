"""How many sockets each connection brought through a proxy, beside other programs that open and close many: of readings of real runs."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from asyncli.analysis.holders import Holders, holders_of
from asyncli.analysis.proxied_sockets import SocketsBrought, sockets_brought
from asyncli.model import metrics
from asyncli.model.plan import Plan
from asyncli.model.records import Phase, Sample, Tick
from asyncli.model.run import Run

N = 120
#: What nginx, two workers of it and two new ones have open beside the connections.
OWN, NEW = 28, 28


class Reading(NamedTuple):
    """Of a second: sockets of all families and of TCP that are used, and all of TCP."""

    t_s: float
    used: int
    tcp_used: int
    tcp: int
    held: int


class Read(NamedTuple):
    """Of a run of 120 WebSockets through nginx to a backend at a Unix socket, which is reloaded in the hold; other tests ran meanwhile."""

    ramp_s: float
    hold_s: float
    drain_s: float
    residue_s: float
    readings: list[Reading]


# Others opened 300 Unix sockets and 900 TCP sockets until the drain.
OTHERS_OPENED = Read(2.58, 8.59, 16.65, 17.57, [
    Reading(0.05, 4684, 4456, 4525, 0), Reading(1.0, 5267, 5024, 5093, 0), Reading(2.45, 5878, 5620, 5697, 0), Reading(3.0, 6178, 5902, 5991, 9),
    Reading(4.0, 6882, 6550, 6639, 29), Reading(5.0, 7847, 7438, 7534, 49), Reading(6.0, 8646, 8158, 8260, 69), Reading(7.0, 9433, 8867, 8977, 89),
    Reading(8.0, 8250, 7589, 7699, 109), Reading(9.0, 8973, 8247, 8357, N), Reading(10.0, 9109, 8360, 8472, N), Reading(11.0, 8923, 8164, 8276, N),
    Reading(12.0, 8811, 8047, 8161, N), Reading(13.0, 8811, 8051, 8219, N), Reading(14.0, 8947, 8171, 11975, N), Reading(15.0, 9555, 8775, 11986, N),
    Reading(16.0, 3658, 2875, 7006, N), Reading(16.59, 3507, 2710, 6841, N), Reading(17.58, 2820, 2280, 4248, 0), Reading(17.62, 2825, 2280, 4204, 0),
])  # fmt: skip
# Others closed as many as they had opened a second before the drain.
OTHERS_CLOSED = Read(2.2, 8.2, 16.51, 17.2, [
    Reading(0.01, 5478, 5222, 5291, 0), Reading(1.0, 5906, 5648, 5725, 0), Reading(2.07, 6528, 6228, 6317, 0), Reading(3.0, 7436, 7066, 7155, 17),
    Reading(4.0, 8250, 7804, 7902, 37), Reading(5.0, 9025, 8503, 8613, 57), Reading(6.0, 7829, 7221, 7331, 77), Reading(7.0, 8647, 7949, 8059, 96),
    Reading(8.0, 9087, 8347, 8457, 116), Reading(9.0, 9108, 8360, 8472, N), Reading(10.0, 8812, 8046, 8160, N), Reading(11.0, 8809, 8049, 8163, N),
    Reading(12.0, 8827, 8051, 9859, N), Reading(13.0, 9404, 8624, 12752, N), Reading(14.0, 3707, 2925, 6636, N), Reading(15.0, 3716, 2920, 7051, N),
    Reading(16.0, 2796, 2250, 4268, N), Reading(16.39, 2420, 1888, 4332, N), Reading(17.21, 1903, 1643, 5319, 0), Reading(17.51, 1985, 1733, 5379, 0),
])  # fmt: skip


def quiet(of_tcp: int, of_others: int) -> Read:
    """As many connections on a host where nobody else opens a socket, with so many further sockets each."""
    readings = []
    for reading in OTHERS_OPENED.readings:
        tcp = 300 + (2 + of_tcp) * reading.held
        readings.append(reading._replace(used=500 + tcp + of_others * reading.held, tcp_used=tcp, tcp=tcp))
    return OTHERS_OPENED._replace(readings=readings)


def recorded(read: Read, of_server: int = 2, of_backend: int = 1) -> Run:
    """The run, of whose connections the server and its backend have so many descriptors each."""
    phases = [
        Phase("baseline", 0.0, read.ramp_s), Phase("ramp", read.ramp_s, read.hold_s), Phase("hold", read.hold_s, read.drain_s),
        Phase("drain", read.drain_s, read.residue_s), Phase("residue", read.residue_s, read.residue_s + 0.5),
    ]  # fmt: skip
    samples = []
    for one in read.readings:
        values = {
            metrics.KERNEL_SOCKETS: one.used, metrics.KERNEL_TCP_INUSE: one.tcp_used, metrics.KERNEL_TCP_ALLOC: one.tcp,
            metrics.SERVER_DESCRIPTORS_OPEN: OWN + of_server * one.held + (NEW if one.held == N else 0),
            metrics.SERVER_PROCESSES: 5 if one.held == N else 3,
        }  # fmt: skip
        # On a busy machine descriptors of others are read twice in the hold.
        if one.held == N and one.t_s >= 14.0:
            values |= {metrics.HOST_OTHER_PROCESSES: 226, f"{metrics.BESIDE_DESCRIPTORS}backend": of_backend * one.held}
        samples.append(Sample(one.t_s, {name: float(value) for name, value in values.items()}))
    ticks = []
    for second in range(1, 16):
        held = min(N, 20 * second)
        drained = second == 15
        tick = Tick(second=second, workers=1, held=0 if drained else held, held_at_drain=N if drained else 0, opened=20 if second < 7 else 0, answered=70)
        ticks.append((read.ramp_s + second, tick))
    server = {"label": "nginx/1.22.1", "pid": 4242}
    environment = {"local": True, "cpus": 2, "workers": 1, "memory_bytes": 25_000_000_000, "server": server}
    plan = Plan(urls=("ws://127.0.0.1:8080/",), connections=N)
    return Run("f00dfeed0002", "2026-11-29T19:31:00Z", plan, environment, phases, ticks, samples, [], [], complete=True)


def brought(run: Run) -> SocketsBrought:
    return sockets_brought(run, holders_of(run))


@pytest.mark.parametrize("read", [OTHERS_OPENED, OTHERS_CLOSED])
def test_beside_others_a_proxy_and_its_backend_have_a_pair_for_each(read: Read) -> None:
    """By the counts of all sockets, others opened 4.5 of other families for each connection in the one run."""
    run = recorded(read)
    assert holders_of(run) == Holders(server=True, behind=("backend",))
    assert brought(run) == SocketsBrought(others=2)


@pytest.mark.parametrize("of_others", [-3, -2, -1, 1, 2, 3, 5])
@pytest.mark.parametrize("since_s", [5.0, 13.5])
@pytest.mark.parametrize("family", ["tcp", "others"])
def test_whatever_others_open_or_close_in_the_hold_it_is_a_pair(family: str, since_s: float, of_others: int) -> None:
    quiet_read = quiet(2 if family == "tcp" else 0, 0 if family == "tcp" else 2)
    readings = []
    for one in quiet_read.readings:
        more = of_others * N if one.t_s >= since_s else 0
        if family == "tcp":
            readings.append(one._replace(used=one.used + more, tcp_used=one.tcp_used + more, tcp=one.tcp + more))
        else:
            readings.append(one._replace(used=one.used + more))
    assert sum(brought(recorded(quiet_read._replace(readings=readings)))) == 2


@pytest.mark.parametrize(("of_tcp", "of_others"), [(2, 0), (0, 2), (0, 0)])
def test_on_a_quiet_host_the_counts_tell_it(of_tcp: int, of_others: int) -> None:
    """A server and a program behind it that open files for each connection, and no sockets, bring none."""
    assert brought(recorded(quiet(of_tcp, of_others))) == SocketsBrought(of_tcp, of_others)


def test_a_server_without_a_descriptor_to_a_backend_has_no_pair() -> None:
    assert brought(recorded(OTHERS_OPENED, of_server=1)) == SocketsBrought()
    assert brought(recorded(OTHERS_OPENED, of_backend=0)) == SocketsBrought()


def test_a_chain_of_two_backends_has_two_pairs() -> None:
    assert brought(recorded(quiet(2, 2), of_backend=3)) == SocketsBrought(2, 2)


def test_sockets_of_others_that_come_and_go_with_ours_are_no_second_pair() -> None:
    """Another soak of as many over TCP, while ours has a Unix socket to its backend."""
    assert sum(brought(recorded(quiet(2, 2)))) == 2
