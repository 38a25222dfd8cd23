"""Events of a plan: what is done to the connections or the server in the hold, and when
(``--at TIME WHAT``; ``[[events]]`` in a plan file).
"""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from asyncli.core.events import Choice, Reconnect, Turns
from asyncli.model.units import exact_duration, parse_duration, shown

#: What can be done.
Deed = Literal["drop", "storm", "vanish", "stall", "run", "mark", "churn"]
How = Literal["rst", "fin"]
Then = Literal["return", "reconnect", "gone"]
_WORDS = (
    "'drop 30%', 'storm', 'vanish 30% for 20s then return', 'stall 5% for 60s', "
    "'run nginx -s reload', or 'mark TEXT'"
)
_LONGEST_NOTE = 200
#: What a client's kernel takes while nobody reads: the first window is 64 kB (half of the usual
#: net.ipv4.tcp_rmem), and it grows only with what is read.
UNREAD_BYTES = 65_536
_POLICIES = "now, jitter:10s, backoff:1s..60s or fixed:3s"


class PlannedEvent(msgspec.Struct, frozen=True):
    """An event. ``at_s``: when, in seconds after the hold's start; or ``at_share``: a share (0 to
    1) of the hold's planned length. ``share``: of all connections. ``how`` a connection is ended:
    by RST, or by FIN as a process that ends does.

    Those that vanish fall silent without RST or FIN for ``for_s`` (None: for good), and ``then``
    return on the same connection, reconnect on a new one, or are gone. Those that stall read
    nothing for ``for_s`` (None: until the drain). ``note``: the command of a run, the text of a
    mark.
    """

    do: Deed
    at_s: float | None = None
    at_share: float | None = None
    share: float = 1.0
    how: How = "rst"
    for_s: float | None = None
    then: Then = "gone"
    note: str = ""

    def after_s(self, hold_s: float | None) -> float:
        """How long after the hold's start it is due (s), in a hold of this length."""
        if self.at_s is not None:
            return self.at_s
        assert self.at_share is not None
        assert hold_s is not None
        return self.at_share * hold_s

    @property
    def is_of_connections(self) -> bool:
        """Whether it is done to connections, by the generator's processes."""
        return self.do not in ("run", "mark")

    @property
    def is_for_good(self) -> bool:
        """Whether those whom it concerns do not come back."""
        return self.do == "vanish" and self.then == "gone"

    @property
    def lasts_to_the_end(self) -> bool:
        """Whether it keeps its connections until the hold is over."""
        return self.is_for_good or (self.do == "stall" and self.for_s is None)

    @property
    def has_chosen(self) -> bool:
        """Whether it is done to some of the connections at its instant."""
        return self.do in ("drop", "storm", "vanish", "stall")

    def may_last_until(self, later: PlannedEvent) -> bool:
        """Whether it may keep its connections when a later event comes, as far as the plan
        tells.
        """
        if self.lasts_to_the_end:
            return True
        if self.for_s is None:
            return False
        if self.at_s is None or later.at_s is None:
            return True
        return self.at_s + self.for_s >= later.at_s

    @property
    def words(self) -> str:
        """What it does, as ``--at`` has it: "drop 30% how=fin"."""
        if not self.is_of_connections:
            return f"{self.do} {self.note}"
        if self.do == "storm":
            return f"storm{self._how_words}"
        share = f"{100 * self.share:.12g}%"
        if self.do == "drop":
            return f"drop {share}{self._how_words}"
        if self.for_s is None:
            return f"{self.do} {share}"
        if self.do == "stall":
            return f"stall {share} for {self.for_s:.12g}s"
        return f"vanish {share} for {self.for_s:.12g}s then {self.then}"

    @property
    def _how_words(self) -> str:
        if self.how == "rst":
            return ""
        return f" how={self.how}"

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


def choices_of(events: Sequence[PlannedEvent], seed: int, connections: int) -> dict[int, Choice]:
    """Whom each event concerns that is done to connections, by its number from 1: the same in each
    process of a run. As far as there are enough, those who are in no other event at that time.
    """
    numbered = [(number, event) for number, event in enumerate(events, 1) if event.has_chosen]
    if all(event.at_s is not None for _, event in numbered):
        numbered.sort(key=lambda item: (item[1].at_s, item[0]))
    turns = Turns(seed, connections)
    chosen: dict[int, Choice] = {}
    done: list[tuple[PlannedEvent, Choice]] = []
    for number, event in numbered:
        away = [choice for earlier, choice in done if earlier.may_last_until(event)]
        chosen[number] = turns.take(event.share, away)
        done.append((event, chosen[number]))
    return chosen


def parse_events(value: object) -> tuple[str, ...]:
    """Events, each as :func:`planned_event` reads it: from pairs of a time and words, as flags give
    them, or tables, as plan files do. Raises ValueError.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{shown(value)} is no list of events; write [[events]] at = '30s'")
    return tuple(_parse_event(event).text for event in value)


# An analysis asks for the same ones again and again.
@functools.lru_cache(maxsize=1024)
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
        at, _, event = str(time).strip().partition(" ")
        if event:
            raise ValueError(
                f"{shown(time)} is no time; a time and an event are two words of the command line: "
                f"--at {at} {shlex.quote(event)}"
            )
        return _of_words(time, str(words))
    raise ValueError(f"{shown(value)} is no event; write a time and {_WORDS}")


def _of_table(table: Mapping[str, Any]) -> PlannedEvent:
    unknown = sorted(str(key) for key in table.keys() - _KEYS)
    if unknown and str(table.get("do")).strip() == "run":
        raise ValueError(
            f"{unknown[0]}: a table has no command; write --at TIME 'run COMMAND' on the command "
            "line"
        )
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown key; an event has {', '.join(sorted(_KEYS))}")
    for key in ("at", "do"):
        if key not in table:
            raise ValueError(f"an event lacks {key}; write at = '30s' and do = 'storm'")
    words = [str(table["do"])]
    if "text" in table:
        words.append(str(table["text"]))
    if "share" in table:
        words.append(str(table["share"]))
    if "how" in table:
        words.append(f"how={table['how']}")
    for key in ("for", "then"):
        if key in table:
            words += [key, str(table[key])]
    return _of_words(table["at"], " ".join(words))


_KEYS = frozenset({"at", "do", "share", "how", "for", "then", "text"})


def _of_words(time: object, text: str) -> PlannedEvent:
    deed, _, rest = text.strip().partition(" ")
    if not deed:
        raise ValueError(f"{shown(str(time))} is no event; write a time and {_WORDS}")
    if deed not in ("run", "mark", *_READERS):
        raise ValueError(f"{shown(text)} is no event; write {_WORDS}")
    at_s, at_share = _parse_time(time)
    try:
        if deed == "run":
            event = PlannedEvent("run", note=_note(rest))
        elif deed == "mark":
            event = PlannedEvent("mark", note=_note(rest))
        else:
            event = _READERS[deed](_Words(rest.split()))
    except ValueError as error:
        raise ValueError(f"{shown(text)}: {error}") from None
    return msgspec.structs.replace(event, at_s=at_s, at_share=at_share)


def _note(text: str) -> str:
    """The command of a run, or the text of a mark, without quotes around all of it."""
    note = text.strip()
    if note[:1] in ("'", '"'):
        with contextlib.suppress(ValueError):
            words = shlex.split(note)
            if len(words) == 1 and len(words[0]) == len(note) - 2:
                [note] = words
    if not note.strip():
        raise ValueError("what is missing; write 'run nginx -s reload' or 'mark deployed 1.4.2'")
    if not note.isprintable() or len(note) > _LONGEST_NOTE:
        raise ValueError(f"what is one line of at most {_LONGEST_NOTE} characters")
    return note


class _Words:
    """The words of an event after its first, each of which is taken once."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def share(self) -> float:
        """The share, which comes first."""
        if not self._words or not self._words[0].endswith("%"):
            raise ValueError("a share is missing; write 30%")
        return parse_share(self._words.pop(0))

    def how(self) -> How:
        for word in self._words:
            if word.startswith("how="):
                self._words.remove(word)
                return _parse_how(word)
        return "rst"

    def after(self, word: str) -> str | None:
        """The word that follows this one, which must be next; None if it is not there."""
        if not self._words or self._words[0] != word:
            return None
        if len(self._words) < 2:
            raise ValueError(f"something is missing after '{word}'")
        _, following = self._words[:2]
        del self._words[:2]
        return following

    def end(self) -> None:
        """Raise ValueError if words are left."""
        if self._words:
            raise ValueError(f"{shown(self._words[0])} is not understood; write {_WORDS}")


def _storm(words: _Words) -> PlannedEvent:
    event = PlannedEvent("storm", how=words.how())
    words.end()
    return event


def _drop(words: _Words) -> PlannedEvent:
    event = PlannedEvent("drop", share=words.share(), how=words.how())
    words.end()
    return event


def _vanish(words: _Words) -> PlannedEvent:
    share = words.share()
    for_words = words.after("for")
    then = words.after("then")
    words.end()
    if for_words is None:
        if then not in (None, "gone"):
            raise ValueError(f"how long is missing; write 'for 20s then {then}'")
        return PlannedEvent("vanish", share=share)
    for_s = parse_duration(for_words)
    if then in (None, "reconnect"):
        return PlannedEvent("vanish", share=share, for_s=for_s, then="reconnect")
    if then == "return":
        return PlannedEvent("vanish", share=share, for_s=for_s, then="return")
    raise ValueError("who is silent for a time then does return or reconnect")


def _stall(words: _Words) -> PlannedEvent:
    share = words.share()
    for_words = words.after("for")
    words.end()
    if for_words is None:
        return PlannedEvent("stall", share=share)
    return PlannedEvent("stall", share=share, for_s=_outage_s(for_words))


def _outage_s(text: str) -> float:
    """How long clients are silent, or read nothing (s)."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{shown(text)} is no time; write 'for 20s'")
    return seconds


_READERS: dict[str, Callable[[_Words], PlannedEvent]] = {
    "storm": _storm,
    "drop": _drop,
    "vanish": _vanish,
    "stall": _stall,
}


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


def parse_churn(value: object) -> str:
    """A pace of churn, as :func:`churn_per_s` reads it. Raises ValueError."""
    text = str(value).strip()
    churn_per_s(text)
    return text


def churn_per_s(text: str) -> float:
    """The share of the connections that churn replaces in a second: "1%/m", "0.5%/s". Raises
    ValueError.
    """
    share, slash, unit = text.strip().partition("/")
    seconds = _SECONDS.get(unit.strip())
    if not slash or seconds is None:
        raise ValueError(f"{shown(text)} is no pace of churn; write 1%/m, 0.5%/s or 20%/h")
    if not share.strip().endswith("%"):
        raise ValueError(f"{shown(text)} is no share in a time; write 1%/m, 0.5%/s or 20%/h")
    per_s = parse_share(share) / seconds
    if per_s > _FASTEST_CHURN_PER_S:
        raise ValueError(f"{shown(text)}: is faster than 10%/s; write a storm: --at 30s storm")
    return per_s


_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# Each would be replaced before it has sent a heartbeat.
_FASTEST_CHURN_PER_S = 0.1


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
    if not text:
        raise ValueError("a time is missing")
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
