"""Findings of answers: late, or none; and of what the network lost on the way."""

from __future__ import annotations

from typing import Literal

from asyncli.findings import Words, finding
from asyncli.units import format_clock, format_count, format_duration, format_many

#: Why nobody was answered.
NoAnswers = Literal["unacknowledged", "stopped", "slow", "page_answered", "unknown"]
_WAY = "see routes, firewalls and links between here and the server"


@finding("no_answers", "warning")
def no_answers(from_s: float, to_s: float, waited: int, server: str, why: NoAnswers, requests: int | None) -> Words:
    """For two seconds or more no heartbeat was answered, though some waited, and no connection was lost. Why is told by what the
    kernel had to send again, and by the server's status page (``requests``: how many it counted meanwhile) and its CPU time.
    """
    said, remedy = {
        "unacknowledged": ("nothing that was sent was acknowledged: looks like the way to it was cut for so long", _WAY),
        "stopped": (
            f"{server} stood still, its status page was silent too, and its processes used no CPU",
            "see who stopped it (SIGSTOP, a debugger, a frozen cgroup)",
        ),
        "slow": (
            f"{server} counted {format_many(requests or 0, 'request')} meanwhile: it was slow, or answers were held up on the "
            "way back",
            "see its load, and boxes between here and the server",
        ),
        "page_answered": ("its status page answered: looks like the way to it was cut for so long", _WAY),
        "unknown": (
            f"looks like {server} stood still, or the way to it was cut for so long",
            "see its load and its error log, and routes and firewalls between",
        ),
    }[why]
    return Words(
        f"no heartbeat was answered from {format_clock(from_s)} to {format_clock(to_s)}, while up to {format_count(waited)} "
        f"waited, and no connection was lost: {said}",
        remedy,
    )


@finding("no_answers", "warning")
def no_answers_more(stretches: int) -> Words:
    """So many ``stretches`` without an answer came beside those that have a finding each."""
    return Words(f"... and {stretches} stretches more without any answer")


@finding("answers_slow", "warning")
def answers_slow(
    from_s: float, to_s: float, median_s: float, usual_s: float, server: str, cores: float | None, times: int, all_s: int
) -> Words:
    """For three seconds or more, half of all answers came late: ten times later than at the best of times, and by 0.1 s or more.
    Those of the longest such time; ``times``: how many there were, ``all_s`` in all. ``cores``: what the server used meanwhile.
    """
    evidence = f"answers came late from {format_clock(from_s)} to {format_clock(to_s)}: half of them took "
    evidence += f"{format_duration(median_s)} or longer, and {format_duration(usual_s)} at the best of times"
    if cores is not None:
        evidence += f"; {server} used {cores:.2f} cores meanwhile"
    if others := times - 1:
        evidence += f"; and {'once' if others == 1 else f'{others} times'} more, {all_s} s in all"
    return Words(evidence, "see the server's load, its disks and what stands behind it at that time, and the way to it")


@finding("packets_sent_again", "warning")
def packets_sent_again(here: bool, count: float, from_s: float, to_s: float, share: float, within_s: float) -> Words:
    """A host had to send 1 % or more of its TCP segments again ``within_s``, as nobody acknowledged them: asyncli's (``here``)
    or the server's. The kernel counts for all programs.
    """
    who, between = ("this host", "here and the server") if here else ("the server's side", "the server and here")
    return Words(
        f"{who} had to send {format_count(count)} TCP segments again between {format_clock(from_s)} and {format_clock(to_s)}, up "
        f"to {share:.0%} of what it sent within {within_s:.0f} s: packets were lost on the way, or a full queue dropped them",
        f"see links, cables and firewalls between {between} (ip -s link), and its listen queue",
    )


@finding("not_heard", "warning")
def not_heard(count: int, held: int, from_s: float, for_s: float, fault: bool, enough_s: float) -> Words:
    """Connections counted as held whose last answer is from before ``from_s``: when the hold began, or when the first heartbeat
    of a ``fault`` stayed unanswered. A hold of ``enough_s`` hears each.
    """
    since = "when the first heartbeat stayed unanswered" if fault else "when the hold began"
    # However long it was held: what counts is the time after the fault.
    longer = "hold on, after it, for" if fault else "hold for"
    return Words(
        f"{format_count(count)} of the {format_count(held)} connections held were not heard after {format_clock(from_s)}, "
        f"{since}, {format_duration(for_s)} before the end: unknown whether they still stood",
        f"{longer} {format_duration(enough_s)} or longer (--keepalive / 2 + --timeout), or lower --keepalive",
    )
