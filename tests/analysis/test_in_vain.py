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
