"""When a connection sends its next heartbeat. Jitter is a hash, so the schedule needs no state and
no order of events.

The sleep before beat ``b`` of connection ``c`` is uniform in [1, keepalive/2] seconds and depends
on (seed, c, b) alone, not on the number of workers or the order of calls. The same seed gives the
same schedule.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
# The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit flips every output bit with
# probability near half.
_MIX1, _MIX2, _GOLDEN = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
SHORTEST_SLEEP_S = 1.0


def fraction(seed: int, connection: int, number: int) -> float:
    """A number in [0, 1), uniform over connections and numbers, fixed by the three arguments."""
    # Connection and number share one word; 2^24 beats at a second each are half a year.
    value = (seed + ((connection << 24) ^ number) * _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK
    return (value ^ (value >> 31)) * 2.0**-64


def sleep_s(seed: int, connection: int, beat: int, keepalive_s: float) -> float:
    """Seconds that connection ``connection`` sleeps before its beat ``beat``: uniform in [1,
    keepalive_s/2].
    """
    # fraction(seed, connection, beat), inlined: the call costs as much as the arithmetic, once per
    # connect and heartbeat.
    value = (seed + ((connection << 24) ^ beat) * _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK
    return SHORTEST_SLEEP_S + (keepalive_s / 2 - SHORTEST_SLEEP_S) * (
        (value ^ (value >> 31)) * 2.0**-64
    )


# Half a second outlasts a server's reload; an operator still waits 30 seconds.
_FIRST_BACKOFF_S, _MIDDLE_BACKOFF_S, _SPREAD = 0.5, 30.0, 0.5
LONGEST_BACKOFF_S = _MIDDLE_BACKOFF_S * (1 + _SPREAD)
# Without a salt, a backoff would repeat the jitter of the heartbeat with the same number.
_BACKOFF_SALT = 0x5DEECE66D


def backoff_s(seed: int, connection: int, attempt: int, retry: int) -> float:
    """Seconds before a lost connection is replaced: doubling per failed ``retry`` from 0.5 s to
    30 s, spread by +-50 %.
    """
    middle = min(_MIDDLE_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(retry, 10))
    return middle * (
        1 - _SPREAD + 2 * _SPREAD * fraction(seed ^ _BACKOFF_SALT, connection, attempt)
    )
