"""Where connects were that got no answer after an event: by acknowledgements, the kernel's list of sockets, and what it dropped."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from test_what_events_did import AT_S, CLIENTS, held_run

from asyncli.analysis.in_vain import InVain, in_vain, unanswered_since
from asyncli.model import metrics
from asyncli.model.records import EventCounts, Sample, Tick
from asyncli.model.run import Run

IN_VAIN = 300


def muted(
    accepted: Callable[[float], float],
    waiting: float = 0.0,
    *,
    acknowledged: int = IN_VAIN,
    dropped: float = 0.0,
    others: float = 0.0,
    answered: int = 0,
    unread: bool = False,
    was_mute: bool = False,
) -> Run:
    """A storm ends all of 200 clients, who connect again and wait for answers. ``accepted``: of the server's sockets then, by the connects that
    stand; ``others``: of other clients; ``answered``: heartbeats in each second since; ``was_mute``: none was answered before either."""
    ticks = []
    for second in range(6, 40):
        t_s = second + 0.2
        is_over = t_s > AT_S + 0.5
        tick = Tick(second=second, held=0 if is_over else CLIENTS, connecting=CLIENTS if is_over else 0, workers=1, sent=60)
        tick.answered = answered if is_over else 60
        if was_mute and second > 15:
            tick.answered = answered
        if t_s == pytest.approx(AT_S + 1.0):
            tick.events[1] = EventCounts(chosen=CLIENTS, ended=CLIENTS)
        if t_s == pytest.approx(AT_S + 5.0):
            tick.events[1] = EventCounts(attempts=IN_VAIN, opened=IN_VAIN, phantoms=IN_VAIN, in_vain=IN_VAIN, acknowledged=acknowledged)
        ticks.append((t_s, tick))
    samples = []
    for second in range(40):
        is_over = second > AT_S + 0.5
        values = {metrics.SERVER_LISTENERS_DROPPED: dropped if is_over else 0.0}
        if not unread:
            ours = 0.0 if second < 6 else float(CLIENTS)
            values[metrics.SERVER_SOCKETS] = others + (accepted(CLIENTS) if is_over else ours)
            values[metrics.SERVER_SOCKETS_WAITING] = waiting if is_over else 0.0
        samples.append(Sample(float(second), values))
    return held_run(ticks, samples, "storm", "storm")


def of_all(connecting: float) -> float:
    return connecting


def of_none(connecting: float) -> float:
    return 0.0 * connecting


@pytest.mark.parametrize(
    ("run", "received"),
    [
        (muted(of_all), "accepted"),
        (muted(of_none, float(CLIENTS)), "waiting"),
        (muted(of_none, acknowledged=0, dropped=40.0), "dropped"),
        # Nothing tells whose network, or which queue, had lost them.
        (muted(of_none, acknowledged=0), None),
        # Some were acknowledged and others not.
        (muted(of_all, acknowledged=IN_VAIN // 2), None),
        # A server of which the sockets are not seen; other clients hold there too; half of them.
        (muted(of_all, unread=True), "acknowledged"),
        (muted(of_all, others=80.0), "acknowledged"),
        (muted(lambda connecting: connecting / 2), "acknowledged"),
        # Some waited all the while beside those that were accepted: it may have been these.
        (muted(of_all, float(CLIENTS) / 2), "acknowledged"),
    ],
)
def test_where_they_were(run: Run, received: str | None) -> None:
    [window] = run.event_windows.values()
    told = in_vain(run, window, run.counts_of_event(1))
    assert told == InVain(IN_VAIN, run.counts_of_event(1).acknowledged, 10.0, received)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("granted", "waiting", "tls", "received"),
    [
        # The listen queue is full: others of those who connect have no place in it, and none of them is one in vain.
        (110, 110.0, False, "waiting"),
        (110, 50.0, False, "acknowledged"),
        # Of an older file; of TLS, those whose handshake has begun stand too and are not counted so.
        (0, 110.0, False, "acknowledged"),
        (110, 110.0, True, "acknowledged"),
    ],
)
def test_in_a_full_queue_those_wait_whose_connects_were_granted(granted: int, waiting: float, tls: bool, received: str) -> None:
    run = muted(of_none, waiting)
    for t_s, tick in run.ticks:
        tick.coming_back = granted if t_s > AT_S + 0.5 else 0
    if tls:
        run = msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, urls=("https://127.0.0.1:8443/",)))
    [window] = run.event_windows.values()
    told = in_vain(run, window, run.counts_of_event(1))
    assert told is not None
    assert told.received == received


def in_step(phase_s: float, *, accepted: float = 0.0, waiting: float = 0.0, still: float = 0.0) -> Run:
    """A storm ends all of 200 clients, who connect half a second later, give up after a second, and so on, all at one moment; asyncli's
    seconds end ``phase_s`` after the readings. ``accepted``, ``waiting``: the shares that the server's program had, and its listen queue.
    ``still``: for so long a worker of asyncli stands still, and nobody stands meanwhile."""

    begun_s = int(AT_S) + phase_s
    still_from_s = begun_s + 4.6

    def stand(at_s: float) -> bool:
        since_s = at_s - begun_s - 0.5
        return since_s >= 0 and since_s % 1.5 < 1.0 and not still_from_s <= at_s < still_from_s + still

    ticks, samples = [], []
    stood_at_s = begun_s
    for second in range(6, 40):
        t_s = second + phase_s
        # What a second has is told at its end, or once the worker goes on.
        is_late = still_from_s <= t_s - 0.001 < still_from_s + still
        told_at_s = still_from_s + still if is_late else t_s - 0.001
        stands = stand(told_at_s)
        tick = Tick(second=second, held=0 if t_s > begun_s else CLIENTS, connecting=CLIENTS * stands, workers=1)
        tick.longest_turn_s = still if is_late else 0.0
        # They came in this second if there was an instant in it when none stood.
        came = any(not stand(stood_at_s + part * (told_at_s - stood_at_s) / 20) for part in range(20))
        tick.started = CLIENTS * (stands and came)
        stood_at_s = told_at_s
        if second == int(AT_S) + 1:
            tick.events[1] = EventCounts(chosen=CLIENTS, ended=CLIENTS)
        if second == int(AT_S) + 8:
            tick.events[1] = EventCounts(attempts=IN_VAIN, opened=IN_VAIN, phantoms=IN_VAIN, in_vain=IN_VAIN, acknowledged=IN_VAIN)
        ticks.append((t_s, tick))
    for second in range(40):
        ours = CLIENTS * float(stand(float(second)))
        held = float(CLIENTS) if 6 <= second <= begun_s else 0.0
        values = {metrics.SERVER_SOCKETS: held + accepted * ours, metrics.SERVER_SOCKETS_WAITING: waiting * ours, metrics.SERVER_LISTENERS_DROPPED: 0.0}
        samples.append(Sample(float(second), values))
    return held_run(ticks, samples, "storm", "storm")


@pytest.mark.parametrize("phase_s", [0.12, 0.3, 0.45, 0.6, 0.7, 0.88])
@pytest.mark.parametrize("still", [0.0, 1.4])
@pytest.mark.parametrize(
    ("accepted", "waiting", "received"),
    [(1.0, 0.0, "accepted"), (0.0, 1.0, "waiting"), (0.5, 0.0, "acknowledged"), (0.0, 0.5, "acknowledged"), (0.0, 0.0, "acknowledged")],
)
def test_clients_in_step_stand_or_none_does(phase_s: float, still: float, accepted: float, waiting: float, received: str) -> None:
    run = in_step(phase_s, accepted=accepted, waiting=waiting, still=still)
    [window] = run.event_windows.values()
    told = in_vain(run, window, run.counts_of_event(1))
    assert told is not None
    assert told.received == received


def test_of_none_in_vain_nothing_is_told() -> None:
    run = muted(of_all)
    [window] = run.event_windows.values()
    assert in_vain(run, window, EventCounts(phantoms=3)) is None


@pytest.mark.parametrize(
    ("run", "codes"),
    [
        (muted(of_all), ["listen_accepted"]),
        (muted(of_none, float(CLIENTS)), ["listen_waiting"]),
        (muted(of_all, answered=1), []),
        (muted(of_all, unread=True), []),
        # It was silent before the event: not since that.
        (muted(of_all, was_mute=True), []),
    ],
)
def test_a_server_that_answers_nobody_since_an_event(run: Run, codes: list[str]) -> None:
    found = unanswered_since(patient(run, 4.0))
    assert [finding.code for finding in found] == codes
    assert all(finding.fields["event"] == 1 for finding in found)
    # There has to be as much time after it.
    assert unanswered_since(patient(run, 30.0)) == []


def patient(run: Run, timeout_s: float) -> Run:
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, timeout_s=timeout_s))
