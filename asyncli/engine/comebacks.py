"""The connections of one process that are away, and when each comes back.

Those whom an event ended belong to it until their first answer: what fails until then is the
event's, and no loss. Back is the first answer, since the client's kernel says that a connection
stands while the server's listen queue, being full, has dropped it. Until then they are not held.

They have a queue of their own: governed by the ramp's pace or by its limit of pending connects,
asyncli would measure itself.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from heapq import heappop, heappush

from asyncli.core.events import Reconnect
from asyncli.model.records import CHURN, EventCounts


class Comebacks:
    """``number``: the number of a row's connection in the run. ``rows``: how many there are; 0
    where no event concerns any. Instants are those of the net's clock (s).
    """

    def __init__(
        self, policy: Reconnect, seed: int, number: Callable[[int], int], rows: int
    ) -> None:
        self._policy = policy
        self._seed = seed
        self._number = number
        #: Rows that an event ended and that have had no answer since -> the event's number.
        self.event_of: dict[int, int] = {}
        # Of these, those whose connection that stands has had answers, all of them errors.
        self._answered_with_error: set[int] = set()
        # By the event's number, since the last tick.
        self._counts: dict[int, EventCounts] = {}
        # By row, when the last event that concerned it ended it, or had it fall silent or stall.
        self._left_at = array("d", [0.0]) * rows
        # Of the last command, and of churn, which may end a client more than once: by the event's
        # number and the row, how often that was, at most twice.
        self._ends: dict[int, bytearray] = {}
        self._rows = rows
        #: Of those that stalled, since when their time to be back counts where that is not the end
        #: of the stall.
        self.counts_since: dict[int, float] = {}
        self._begun_at: dict[int, float] = {}
        self._over_at: dict[int, float] = {}
        # Of those whom churn has ended: since when each connects, and how long the slowest that is
        # back took from then on (s).
        self._turn_at: dict[int, float] = {}
        self._slowest_way_s = 0.0
        # The last command: its event, and until when its effects may last.
        self._command: tuple[int, float] | None = None
        # Until when it may end connections from before that command.
        self._earlier_until = -math.inf
        #: How many answers came to those who come back, also those with errors.
        self.answers = 0
        # A heap of rows by the instant to connect.
        self._due: list[tuple[float, int]] = []

    # -- an event

    def begin(self, event: int, at: float, outage_s: float) -> None:
        """An event begins, which was due at this instant. ``outage_s``: how long clients are silent
        before they come back.
        """
        self._begun_at[event] = at
        self._over_at[event] = at + outage_s
        if event == CHURN:
            self._ends[CHURN] = bytearray(self._rows)

    def begin_command(self, event: int, at: float, until: float) -> None:
        """A command runs: what the server ends until then belongs to it."""
        self.begin(event, at, 0.0)
        if self._command is not None:
            earlier, _ = self._command
            del self._ends[earlier]
        self._ends[event] = bytearray(self._rows)
        self._command = (event, until)
        self._earlier_until = -math.inf

    def command_lasts(self, event: int, until: float, *, runs: bool = False) -> None:
        """The server still has processes from before the last command, if it is this event's; or
        that ``runs`` still, or did until now.
        """
        if self._command is None or self._command[0] != event:
            return
        if runs:
            self._command = (event, max(until, self._command[1]))
        else:
            self._earlier_until = until

    def command_at(self, now: float, established_at: float) -> int | None:
        """The event whose command may have the server end a connection now."""
        if self._command is None:
            return None
        event, until = self._command
        if now <= until:
            return event
        if now <= self._earlier_until and established_at < self._begun_at[event]:
            return event
        return None

    def had_errors_before_command(self, row: int, established_at: float) -> bool:
        """Whether an event's row has had answers, all of them errors, on a connection that stood
        before the last command: one that the server ends, and no attempt to come back.
        """
        if self._command is None or row not in self._answered_with_error:
            return False
        event, _ = self._command
        return established_at < self._begun_at[event]

    def ended_by_command(self, event: int, now: float) -> None:
        """The server ends a connection in the time of a command."""
        self.counts_of(event).closed_ms.add((now - self._begun_at[event]) * 1e3)

    def counts_of(self, event: int) -> EventCounts:
        """What an event has counted since the last tick, to be changed."""
        counts = self._counts.get(event)
        if counts is None:
            counts = self._counts[event] = EventCounts()
        return counts

    def leave(self, row: int, event: int, now: float, *, stands: bool = False) -> None:
        """An event ends a row, which belongs to it from now on: an earlier one that it has had no
        answer since waits for it no more. ``stands``: as of :meth:`is_unheard`.
        """
        left_before_at = self._left_at[row]
        self._left_at[row] = now
        self._count_client(row, event)
        earlier = self.event_of.get(row)
        if earlier is not None:
            counts = self.counts_of(earlier)
            if stands:
                counts.unheard += 1
            else:
                counts.ended_again += 1
                counts.until_ended_ms.add((now - left_before_at) * 1e3)
            self.counts_since.pop(row, None)
            self._turn_at.pop(row, None)
            self._answered_with_error.discard(row)
        self.event_of[row] = event

    def _count_client(self, row: int, event: int) -> None:
        """Count a row's client with the event that ends it: once, however often it does."""
        counts = self.counts_of(event)
        ends = self._ends.get(event)
        if ends is None:
            # Any other event ends each client once.
            counts.clients += 1
            return
        if ends[row] == 0:
            counts.clients += 1
        elif ends[row] == 1:
            counts.ended_repeatedly += 1
        ends[row] = min(2, ends[row] + 1)

    # -- the queue

    def wait_s(self, row: int, failed: int) -> float:
        """How long a row waits before it connects again, after so many failed attempts."""
        event = self.event_of.get(row, 0)
        return self._policy.wait_s(self._seed, event, self._number(row), failed)

    def at(self, row: int, instant: float) -> None:
        """Have a row connect at this instant."""
        heappush(self._due, (instant, row))

    @property
    def next_due(self) -> float | None:
        """When the next row is due to connect."""
        if not self._due:
            return None
        return self._due[0][0]

    def take_due(self, now: float) -> int | None:
        """The next row that is due, if any."""
        if not self._due or self._due[0][0] > now:
            return None
        due, row = heappop(self._due)
        event = self.event_of.get(row)
        if event is not None:
            counts = self.counts_of(event)
            counts.attempts += 1
            counts.lateness_us.add((now - due) * 1e6)
        if event == CHURN:
            self._turn_at.setdefault(row, now)
        return row

    # -- how an attempt went

    def began_at(self, row: int) -> float:
        """When the event began that a row comes back from."""
        return self._begun_at[self.event_of[row]]

    def failed_at(self, row: int, destination: int) -> None:
        """A connect of an event's row to one of several addresses failed, or got no answer."""
        counts = self.counts_of(self.event_of[row]).failed_at
        counts[destination] = counts.get(destination, 0) + 1

    def failed(self, row: int, cause: str) -> bool:
        """A connect failed. True if it is an event's, which counts it."""
        event = self.event_of.get(row)
        if event is None:
            return False
        failures = self.counts_of(event).failures
        failures[cause] = failures.get(cause, 0) + 1
        return True

    def connected(self, row: int, took_s: float) -> None:
        """A connect of an event's row succeeded."""
        counts = self.counts_of(self.event_of[row])
        counts.opened += 1
        counts.connect_us.add(took_s * 1e6)

    def unanswered(
        self, row: int, *, asked: bool, established_at: float, acknowledged: bool | None
    ) -> None:
        """The connection of an event's row ended before its first answer: a new one is a phantom;
        one from before the event was ended by the server meanwhile, or got no answer in time since
        it is heard again. ``asked``: a heartbeat was sent. ``acknowledged``: as of :meth:`in_vain`;
        None: the server ended it.
        """
        event = self.event_of[row]
        counts = self.counts_of(event)
        was_turned_away = row in self._answered_with_error
        self._answered_with_error.discard(row)
        if established_at < self.began_at(row):
            counts.closed += acknowledged is None
            counts.timed_out += acknowledged is not None
        elif was_turned_away:
            counts.turned_away += 1
        else:
            counts.phantoms += 1
            if acknowledged is not None:
                self.in_vain(row, acknowledged=acknowledged)
        counts.unanswered += asked

    def is_sent_again(self, row: int, after_s: float) -> None:
        """An event's row is heard again, and its kernel sends what it had asked again after so
        long.
        """
        self.counts_of(self.event_of[row]).resends_ms.add(after_s * 1e3)

    def silence_s(self, row: int) -> float:
        """How long an event had a row fall silent."""
        event = self.event_of[row]
        return self._over_at[event] - self._begun_at[event]

    def in_vain(self, row: int, *, acknowledged: bool) -> None:
        """An event's row got no answer in time on a connection that stands. ``acknowledged``: its
        peer's kernel had all that was sent.
        """
        counts = self.counts_of(self.event_of[row])
        counts.in_vain += 1
        counts.acknowledged += acknowledged

    def answered_with_error(self, row: int, status: int) -> None:
        """An event's row was answered, with this HTTP status: it is not back by that."""
        self._answered_with_error.add(row)
        self.refused_with_error(row, status)

    def refused_with_error(self, row: int, status: int) -> None:
        """An event's row had an answer with this HTTP status, as to the handshake of a protocol."""
        self.answers += 1
        answers = self.counts_of(self.event_of[row]).error_answers
        answers[status] = answers.get(status, 0) + 1

    def back(self, row: int, now: float, answer_s: float | None = None) -> None:
        """An event's row is back, which counts from the end of its outage. ``answer_s``: how long
        its first answer took.
        """
        self.answers += 1
        event = self.event_of.pop(row)
        self._answered_with_error.discard(row)
        counts = self.counts_of(event)
        left_at = self._left_at[row]
        since = self.counts_since.pop(row, self._over_at[event])
        if event == CHURN:
            since = left_at
        counts.back_ms.add((now - since) * 1e3)
        counts.away_ms.add((now - left_at) * 1e3)
        if event == CHURN:
            way_s = now - self._turn_at.pop(row, now)
            self._slowest_way_s = max(self._slowest_way_s, way_s)
        if answer_s is not None:
            counts.answer_us.add(answer_s * 1e6)

    def is_missing(self, row: int, destination: int) -> None:
        """The drain begins, and an event's row had no answer since, last from this address."""
        counts = self.counts_of(self.event_of[row]).missing_at
        counts[destination] = counts.get(destination, 0) + 1

    def is_waiting(self, row: int) -> None:
        """The drain begins before the first wait of an event's row is over."""
        event = self.event_of.get(row)
        if event is not None:
            self.counts_of(event).waiting += 1

    def is_on_its_way(self, row: int, now: float) -> None:
        """The drain begins while a row is on its first way back. Of churn some always are: who is
        for no longer than others took was not to be back yet. Who is for longer hangs on the
        server.
        """
        if self.event_of[row] != CHURN:
            return
        if now - self._turn_at.get(row, now) <= self._slowest_way_s:
            self.is_waiting(row)

    def is_still_away(self, row: int, now: float) -> None:
        """The drain begins, or has begun, and an event's row is not back."""
        counts = self.counts_of(self.event_of[row])
        counts.still_away_ms.add((now - self._left_at[row]) * 1e3)

    def is_unheard(self, row: int) -> None:
        """The drain begins, and a row whose connection stands again has been sent nothing since,
        as no answer is due to it.
        """
        self.counts_of(self.event_of[row]).unheard += 1

    def take_counts(self) -> dict[int, EventCounts]:
        """The counts since the last call."""
        counts = self._counts
        self._counts = {}
        return counts
