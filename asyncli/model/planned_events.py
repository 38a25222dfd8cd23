"""Events of a plan: what is done to the connections or the server in the hold, and when
(``--at TIME WHAT``; ``[[events]]`` in a plan file).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from asyncli.core.events import Reconnect
from asyncli.model.units import exact_duration, parse_duration, shown

#: What can be done.
Deed = Literal["drop", "storm"]
_DEEDS = ("drop", "storm")
How = Literal["rst", "fin"]
_WORDS = "'drop 30%' or 'storm', both with how=fin if wanted"
_POLICIES = "now, jitter:10s, backoff:1s..60s or fixed:3s"


class PlannedEvent(msgspec.Struct, frozen=True):
    """An event. ``at_s``: when, in seconds after the hold's start; or ``at_share``: a share (0 to
    1) of the hold's planned length. ``share``: of all connections. ``how`` a connection is ended:
    by RST, or by FIN as a process that ends does.
    """

    do: Deed
    at_s: float | None = None
    at_share: float | None = None
    share: float = 1.0
    how: How = "rst"

    def after_s(self, hold_s: float | None) -> float:
        """How long after the hold's start it is due (s), in a hold of this length."""
        if self.at_s is not None:
            return self.at_s
        assert self.at_share is not None
        assert hold_s is not None
        return self.at_share * hold_s

    @property
    def words(self) -> str:
        """What it does, as ``--at`` has it: "drop 30% how=fin"."""
        words = self.do if self.do == "storm" else f"{self.do} {100 * self.share:.12g}%"
        return words if self.how == "rst" else f"{words} how={self.how}"

    @property
    def when(self) -> str:
        """When, as ``--at`` has it: "30s", "50%"."""
        if self.at_share is not None:
            return f"{100 * self.at_share:.12g}%"
        assert self.at_s is not None
        return f"{self.at_s:.12g}s"

    @property
    def text(self) -> str:
        """Both: "30s storm"."""
        return f"{self.when} {self.words}"


def parse_events(value: object) -> tuple[str, ...]:
    """Events, each as :func:`planned_event` reads it: from pairs of a time and words, as flags give
    them, or tables, as plan files do. Raises ValueError.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{shown(value)} is no list of events; write [[events]] at = '30s'")
    return tuple(_parse_event(event).text for event in value)


def planned_event(text: str) -> PlannedEvent:
    """An event of a plan: "30s drop 30% how=fin". Raises ValueError."""
    time, _, words = text.strip().partition(" ")
    return _of_words(time, words)


def _parse_event(value: object) -> PlannedEvent:
    if isinstance(value, str):
        return planned_event(value)
    if isinstance(value, Mapping):
        return _of_table(value)
    if isinstance(value, Sequence) and len(value) == 2:
        time, words = value
        return _of_words(time, str(words))
    raise ValueError(f"{shown(value)} is no event; write a time and {_WORDS}")


def _of_table(table: Mapping[str, Any]) -> PlannedEvent:
    unknown = sorted(str(key) for key in table.keys() - {"at", "do", "share", "how"})
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown key; an event has at, do, share and how")
    for key in ("at", "do"):
        if key not in table:
            raise ValueError(f"an event lacks {key}; write at = '30s' and do = 'storm'")
    words = [str(table["do"])]
    if "share" in table:
        words.append(str(table["share"]))
    if "how" in table:
        words.append(f"how={table['how']}")
    return _of_words(table["at"], " ".join(words))


def _of_words(time: object, text: str) -> PlannedEvent:
    deed, *others = text.split() or [""]
    how: How = "rst"
    share: float | None = None
    if deed not in _DEEDS:
        raise ValueError(f"{shown(text)} is no event; write {_WORDS}")
    for word in others:
        if word.startswith("how="):
            how = _parse_how(word)
        elif share is None and word.endswith("%"):
            share = parse_share(word)
        else:
            raise ValueError(f"{shown(text)}: {shown(word)} is not understood; write {_WORDS}")
    at_s, at_share = _parse_time(time)
    if deed == "storm":
        if share not in (None, 1.0):
            raise ValueError(f"{shown(text)}: a storm is of all; write 'drop {others[0]}'")
        return PlannedEvent("storm", at_s, at_share, 1.0, how)
    if share is None:
        raise ValueError(f"{shown(text)}: a share is missing; write 'drop 30%'")
    return PlannedEvent("drop", at_s, at_share, share, how)


def _parse_how(word: str) -> How:
    _, _, how = word.partition("=")
    if how == "rst":
        return "rst"
    if how == "fin":
        return "fin"
    raise ValueError(f"{shown(word)}: a connection ends by how=rst or how=fin")


def _parse_time(value: object) -> tuple[float | None, float | None]:
    """Seconds after the hold's start, or a share of it."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return None, parse_share(value)
    try:
        return parse_duration(value), None
    except ValueError as error:
        raise ValueError(
            f"{error}; an event's time is a duration after the hold's start, or a share of the "
            "hold: 50%"
        ) from None


def parse_share(text: str) -> float:
    """A share above 0 and up to 100 %, as "30%". Raises ValueError."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f"{shown(text)} is no share; write one above 0% and up to 100%")
    return share


def parse_reconnect(value: object) -> str:
    """How clients come back, as :func:`reconnect_of` reads it. Raises ValueError."""
    return policy_words(reconnect_of(value))


def reconnect_of(value: object) -> Reconnect:
    """How clients come back: "now", "jitter:10s", "backoff:1s..60s", "fixed:3s". Raises
    ValueError.
    """
    text = str(value).strip()
    how, _, rest = text.partition(":")
    parse = _POLICY_PARSERS.get(how)
    if parse is None:
        raise ValueError(f"{shown(text)} is no way to come back; write {_POLICIES}")
    try:
        return parse(rest)
    except ValueError as error:
        raise ValueError(f"{shown(text)}: {error}; write {_POLICIES}") from None


def _now(rest: str) -> Reconnect:
    if rest:
        raise ValueError("now takes no time")
    return Reconnect("now", 0.0, 0.0)


def _jitter(rest: str) -> Reconnect:
    return Reconnect("jitter", 0.0, _positive(rest))


def _fixed(rest: str) -> Reconnect:
    wait_s = _positive(rest)
    return Reconnect("fixed", wait_s, wait_s)


def _backoff(rest: str) -> Reconnect:
    first, dots, longest = rest.partition("..")
    if not dots:
        raise ValueError("a backoff has a first and a longest wait")
    first_s = _positive(first)
    longest_s = _positive(longest)
    if longest_s < first_s:
        raise ValueError("the longest wait is shorter than the first")
    return Reconnect("backoff", first_s, longest_s)


_POLICY_PARSERS: dict[str, Callable[[str], Reconnect]] = {
    "now": _now,
    "jitter": _jitter,
    "backoff": _backoff,
    "fixed": _fixed,
}
# Longer than any outage that a client waits for, and within the wheel of comebacks.
_LONGEST_WAIT_S = 3600.0


def _positive(text: str) -> float:
    seconds = float(exact_duration(text))
    if not 0 < seconds <= _LONGEST_WAIT_S:
        raise ValueError(f"{shown(text)} is no wait; it is above 0 and up to an hour")
    return seconds


def policy_words(policy: Reconnect) -> str:
    """A policy as ``--reconnect`` has it."""
    first = f"{policy.first_s:.12g}s"
    longest = f"{policy.longest_s:.12g}s"
    times = {
        "now": "",
        "jitter": f":{longest}",
        "fixed": f":{first}",
        "backoff": f":{first}..{longest}",
    }
    return policy.how + times[policy.how]


#: How clients come back from an event where the plan does not say.
DEFAULT_RECONNECT = policy_words(Reconnect())
