"""What a soak says of a network that drops, delays, spoils or loses. What each run must say is in docs/faults.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from middle_box import MiddleBox, between
from namespaces import WATCHED, Cable, a_cable, inside
from provoked import Held, N, Soaks, Told, an_nginx, an_nginx_at_the_end_of, holding, most, result

pytestmark = [pytest.mark.nginx, pytest.mark.measures]
SOAKS = Soaks[Told]()
soak = SOAKS.soak
IMPATIENT = ("--timeout", "1", "--connect-timeout", "1")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Told]]]:
    yield from SOAKS.start(request, tmp_path_factory)


@pytest.fixture
def told(request: pytest.FixtureRequest, running: dict[str, Future[Told]]) -> Told:
    return result(request, running)


def none_lost(told: Told) -> None:
    counts = told.connections
    assert (counts["opened"], counts["held"], counts["lost"], counts["failed"]) == (N, N, 0, 0)


def whole_again(told: Told, cause: str) -> None:
    """All are held again, what was lost was lost by this cause and replaced, and the report knows why."""
    counts = told.connections
    assert (counts["held"], counts["reopened"]) == (N, counts["lost"])
    assert set(counts["deaths"]) == {cause}
    assert "unexplained" not in {one.code for one in told.diagnoses}


# -- through a box


def boxed(folder: Path, fault: Callable[[MiddleBox], object], mend: Callable[[MiddleBox], object], *more: str) -> Told:
    """What is said of a soak through a box that does a thing until all are lost, and then no more."""
    with an_nginx() as server, between(server.at) as box:
        with holding(folder, server, *more, url=box.url, keepalive="6") as held:
            fault(box)
            held.until_lost(N)
            mend(box)
            held.until_held(N)
            held.seconds(2.0)
        return Told(folder)


def bearable(folder: Path, fault: Callable[[MiddleBox], object]) -> Told:
    """What is said of a soak through a box that does a thing of which nobody dies."""
    with an_nginx() as server, between(server.at) as box:
        with holding(folder, server, url=box.url, keepalive="4", status=0) as held:
            fault(box)
            held.seconds(4.0)
        return Told(folder)


def slow(box: MiddleBox, bytes_per_s: float, piece: int) -> None:
    box.bytes_per_s, box.piece = bytes_per_s, piece


@soak
def answers_that_come_late(folder: Path) -> Told:
    return bearable(folder, lambda box: setattr(box, "delay_s", 0.5))


def test_answers_that_come_late(told: Told) -> None:
    none_lost(told)
    assert told.summary["heartbeats"]["latency_ms"]["p99"] > 500


@soak
def answers_byte_by_byte(folder: Path) -> Told:
    return bearable(folder, lambda box: slow(box, 1000.0, 1))


def test_answers_byte_by_byte(told: Told) -> None:
    none_lost(told)
    assert set(told.summary["heartbeats"]["by_status"]) == {"200"}


@soak
def answers_that_come_too_late(folder: Path) -> Told:
    return boxed(folder, lambda box: setattr(box, "delay_s", 1.5), lambda box: setattr(box, "delay_s", 0.0), *IMPATIENT)


def test_answers_that_come_too_late(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    most(told, "answers_late", False, "answers come late, or are lost on the way back")


@soak
def a_slow_line(folder: Path) -> Told:
    return boxed(folder, lambda box: slow(box, 50.0, 10), lambda box: slow(box, 1e9, 0), *IMPATIENT)


def test_a_slow_line(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    most(told, "answers_in_part", False, "looks like a slow line")


@soak
def answers_that_stop_halfway(folder: Path) -> Told:
    return boxed(folder, lambda box: setattr(box, "spoilt", "half"), lambda box: setattr(box, "spoilt", None), *IMPATIENT)


def test_answers_that_stop_halfway(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    most(told, "answers_in_part", False, "a box on the way that holds answers back")


@soak
def answers_cut_short(folder: Path) -> Told:
    return boxed(folder, lambda box: setattr(box, "spoilt", "half_and_close"), lambda box: setattr(box, "spoilt", None))


def test_answers_cut_short(told: Told) -> None:
    whole_again(told, "closed_awaiting")
    most(told, "cut_short", False, "after a part of it had come")


@soak
def garbage(folder: Path) -> Told:
    return boxed(folder, lambda box: setattr(box, "spoilt", "garbage"), lambda box: setattr(box, "spoilt", None))


def test_garbage(told: Told) -> None:
    whole_again(told, "protocol_error")
    # The URL did name an HTTP server.
    assert "see what took the server's place then" in told.remedies["lost_protocol_error"]


@soak
def a_cut_and_back(folder: Path) -> Told:
    return boxed(folder, lambda box: setattr(box, "cut", True), lambda box: setattr(box, "cut", False), *IMPATIENT)


def test_a_cut_and_back(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    most(told, "path_cut", False, "though the server's status page answered")


@soak
def a_table_that_is_lost(folder: Path) -> Told:
    return boxed(folder, MiddleBox.forget_all, lambda box: None)


def test_a_table_that_is_lost(told: Told) -> None:
    whole_again(told, "reset")
    most(told, "box_reset", True, "a box on the way reset them, and did not tell it")


# -- on a cable


def cabled(
    folder: Path, happens: Callable[[Held, Cable], object], *more: str, status: int = 99, watched_apart: bool = True
) -> Told:
    """What is said of a soak from one namespace to another; the status page is read over a cable of its own, or over the same."""
    with a_cable() as cable, an_nginx_at_the_end_of(cable) as server, inside(cable.client):
        page = f"http://{WATCHED if watched_apart else server.address}:{server.status_port}/nginx_status"
        with holding(folder, server, "--status-url", page, *more, keepalive="6", status=status) as held:
            happens(held, cable)
            held.until_held(N)
            held.seconds(2.0)
        return Told(folder)


def dropping(seconds: float, rule: str = "") -> Callable[[Held, Cable], None]:
    """For some seconds."""

    def happens(held: Held, cable: Cable) -> None:
        cable.drop(rule)
        held.seconds(seconds)
        cable.pass_all()

    return happens


def dropping_until_all_are_lost(held: Held, cable: Cable) -> None:
    cable.drop()
    held.until_lost(N)
    held.until_failed(20)
    cable.pass_all()


@soak
def some_packets_lost(folder: Path) -> Told:
    return cabled(folder, dropping(6.0, "numgen random mod 100 < 8"), status=0)


@pytest.mark.namespaces
def test_some_packets_lost(told: Told) -> None:
    none_lost(told)


@soak
def many_packets_lost(folder: Path) -> Told:
    def happens(held: Held, cable: Cable) -> None:
        cable.drop("numgen random mod 100 < 30")
        held.until_lost(10)
        cable.pass_all()

    return cabled(folder, happens, *IMPATIENT)


@pytest.mark.namespaces
def test_many_packets_lost(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    most(told, "packets_lost", False, "packets were lost on the way")


@soak
def a_blackhole(folder: Path) -> Told:
    return cabled(folder, dropping_until_all_are_lost, *IMPATIENT)


@pytest.mark.namespaces
def test_a_blackhole(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    assert set(told.connections["failures"]) == {"connect_timeout"}
    assert "backlog" not in told.remedies["failed_connect_timeout"]
    most(told, "path_cut", False, "nothing that was sent was acknowledged")


@soak
def a_blackhole_with_the_status_page_behind_it(folder: Path) -> Told:
    return cabled(folder, dropping_until_all_are_lost, *IMPATIENT, watched_apart=False)


@pytest.mark.namespaces
def test_a_blackhole_with_the_status_page_behind_it(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    # The server's processes use no CPU meanwhile, as those of one that stands still.
    most(told, "path_cut", False, "nothing that was sent was acknowledged")


@soak
def a_short_blackhole(folder: Path) -> Told:
    return cabled(folder, dropping(3.0), status=0)


@pytest.mark.namespaces
def test_a_short_blackhole(told: Told) -> None:
    none_lost(told)


@soak
def a_link_that_goes_down(folder: Path) -> Told:
    def happens(held: Held, cable: Cable) -> None:
        cable.link("down")
        held.until_lost(N)
        held.until_failed(20)
        cable.link("up")

    return cabled(folder, happens, *IMPATIENT)


@pytest.mark.namespaces
def test_a_link_that_goes_down(told: Told) -> None:
    whole_again(told, "heartbeat_timeout")
    assert set(told.connections["failures"]) <= {"unreachable", "connect_timeout"}
    most(told, "path_cut", True, "found no route or were forbidden")


@soak
def a_link_that_stays_down(folder: Path) -> Told:
    with a_cable() as cable, an_nginx_at_the_end_of(cable) as server, inside(cable.client):
        page = f"http://{WATCHED}:{server.status_port}/nginx_status"
        with holding(folder, server, "--status-url", page, "--timeout", "4", keepalive="60") as held:
            cable.link("down")
            held.seconds(3.0)
        return Told(folder)


@pytest.mark.namespaces
def test_a_link_that_stays_down(told: Told) -> None:
    # No heartbeat had waited out its time when the hold ended: they do in the drain. Of those that slept nothing is known.
    counts = told.connections
    assert 0 < counts["lost"] == counts["opened"] - counts["held"] < N
    assert set(counts["deaths"]) == {"heartbeat_timeout"}
    assert counts["not_heard"] > N // 2
