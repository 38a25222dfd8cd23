"""A storm as arithmetic: when clients that were all ended at once are back, on a server of known
pace. Pure and deterministic, with no clock: it takes a second for 100,000 connections.

The laws, of Linux:

- A server accepts its connects in order, each so long after the one before as its pace says. Its
  kernel keeps as many as its backlog for it, and one more (sk_acceptq_is_full).
- With that queue full a SYN is dropped. The client's kernel sends it again each second, and after
  the fifth time each time after twice as long; before Linux 6.5 from the first time on.
- A client's timers are rounded up to a grain, so that many SYNs are sent again at one instant.
  The server's kernel lets all of them pass if its queue has room as the first one comes; once the
  queue is full, the others are connected for their client alone. Their first data is sent again
  after 0.2 s, 0.4 s, 0.8 s and so on since the connect, until the queue has room for them or their
  client gives up.
- Back is the first answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

from asyncli.core.events import Reconnect

#: How many times Linux sends a SYN again after a second each, from 6.5 on: one more than
#: net.ipv4.tcp_syn_linear_timeouts, of which 4 is the default.
SYNS_EACH_SECOND = 5
#: After how long (s) a SYN is sent again for the first time.
SYN_AGAIN_S = 1.0
# The kernel's retransmission timer of data begins at TCP_RTO_MIN; a probe of the tail comes first.
_DATA_AGAIN_S = 0.2
#: Timers of 0.25 s to 2 s of a kernel with 250 interrupts a second fire at each 8th of them.
TIMER_GRAIN_S = 0.032
# A storm that is not over by then, or by so many instants for each client, is left unfinished: most
# clients give up before their answer, again and again.
_LONGEST_S = 1800.0
_MOST_INSTANTS_OF_EACH = 80

_ATTEMPT = 0
_SYN_AGAIN = 1
_DATA_AGAIN = 2


class Laws(msgspec.Struct, frozen=True):
    """What decides how a storm goes. Paces in connections a second; infinite: at once.

    ``accept_per_s``: how fast the server accepts; ``answer_per_s``: how fast it, and its clients
    together, bring accepted connections to their first answer. ``backlog``: of the listening
    socket. ``connect_per_s``: how fast the clients' host begins connects, and ``end_each_s``: how
    long it takes to end one connection, where one program ends all. A client gives up a connect
    after ``connect_timeout_s``, and an answer ``answer_timeout_s`` after the connect.
    ``syns_each_second``: how often a SYN is sent again after one second, before each wait is twice
    the one before. ``timers_s``: how long after the event the next of the instants comes at which
    the clients' timers fire, from 0 to :data:`TIMER_GRAIN_S`; nobody knows it in advance.
    """

    accept_per_s: float
    answer_per_s: float
    backlog: int
    connect_per_s: float = math.inf
    end_each_s: float = 0.0
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 10.0
    syns_each_second: int = SYNS_EACH_SECOND
    timers_s: float = 0.0

    def divided(self, by: float) -> Laws:
        """The laws of a storm with so many times fewer connections that lasts as long."""
        return msgspec.structs.replace(
            self,
            accept_per_s=self.accept_per_s / by,
            answer_per_s=self.answer_per_s / by,
            backlog=max(0, round((self.backlog + 1) / by) - 1),
            connect_per_s=self.connect_per_s / by,
            end_each_s=self.end_each_s * by,
        )


class Storm(msgspec.Struct):
    """How a storm went. ``back_s``: when each connection that came back had its first answer, in
    order (s after the event). ``attempts_s``: when each connect began, in order.

    ``dropped``: packets that met a full listen queue. ``met_full``: connects that met one.
    ``failed``: connects that were given up before they were established; ``phantoms``: those that
    were established, at least for the client's kernel, and given up without an answer.
    ``until_s``: when the simulation was left unfinished; None: it was not.
    """

    connections: int
    back_s: list[float] = []
    attempts_s: list[float] = []
    dropped: int = 0
    met_full: int = 0
    failed: int = 0
    phantoms: int = 0
    until_s: float | None = None

    def after_s(self, share: float) -> float | None:
        """When a share (0 to 1) of the connections was back (s); None if fewer were."""
        rank = math.ceil(share * self.connections)
        if rank > len(self.back_s):
            return None
        return self.back_s[max(0, rank - 1)]

    @property
    def unsuccessful(self) -> int:
        """Connects without an answer."""
        return self.failed + self.phantoms

    @property
    def busiest_s(self) -> int:
        """The most connects that began within one second."""
        busiest = 0
        first = 0
        for last, at_s in enumerate(self.attempts_s):
            while self.attempts_s[first] <= at_s - 1.0:
                first += 1
            busiest = max(busiest, last + 1 - first)
        return busiest


def storm(
    laws: Laws,
    policy: Reconnect,
    seed: int,
    event: int,
    numbers: Sequence[int],
    *,
    most_failed: float = math.inf,
    most_met_full: float = math.inf,
) -> Storm:
    """The storm of the connections with these ``numbers``, which come back from event number
    ``event`` of a run with this ``seed`` by ``policy``. It is left unfinished once more connects
    than ``most_failed`` failed, or than ``most_met_full`` met a full queue.
    """
    return _Clients(laws, policy, seed, event, numbers).run(most_failed, most_met_full)


class _Clients:
    def __init__(
        self, laws: Laws, policy: Reconnect, seed: int, event: int, numbers: Sequence[int]
    ) -> None:
        self._laws = laws
        self._policy = policy
        self._seed = seed
        self._event = event
        self._result = Storm(len(numbers))
        self._failed: dict[int, int] = {}
        # (instant, kind, connection, how often it was sent again, when it began or was connected)
        self._due: list[tuple[float, int, int, int, float]] = []
        for place, number in enumerate(numbers):
            due_s = place * laws.end_each_s + policy.wait_s(seed, event, number, 0)
            self._due.append((due_s, _ATTEMPT, number, 0, due_s))
        heapify(self._due)
        self._accept_s = 1 / laws.accept_per_s
        self._answer_s = 1 / laws.answer_per_s
        self._connect_s = 1 / laws.connect_per_s
        # Until then the program that ends connections is busy with that too.
        self._ends_until_s = len(numbers) * (laws.end_each_s + self._connect_s)
        # When the host of the clients may begin its next connect, and when the last of the accepts
        # and answers that are certain so far comes.
        self._may_connect_s = 0.0
        self._last_accept_s = -math.inf
        self._last_answer_s = -math.inf
        # Of the instant at which SYNs are sent again: whether the queue had room for the first.
        self._group_s = -math.inf
        self._group_passes = False

    def run(self, most_failed: float, most_met_full: float) -> Storm:
        result = self._result
        instants = 0
        most_instants = _MOST_INSTANTS_OF_EACH * result.connections
        due = self._due
        while due:
            at_s, kind, number, again, since_s = heappop(due)
            instants += 1
            if at_s > _LONGEST_S or instants > most_instants:
                result.until_s = at_s
                break
            if result.failed + result.phantoms > most_failed or result.met_full > most_met_full:
                result.until_s = at_s
                break
            if kind == _ATTEMPT:
                self._attempt(number, at_s)
            elif kind == _SYN_AGAIN:
                self._syn_again(number, at_s, again, since_s)
            else:
                self._data_again(number, at_s, again, since_s)
        result.back_s.sort()
        result.attempts_s.sort()
        return result

    def _attempt(self, number: int, due_s: float) -> None:
        at_s = max(due_s, self._may_connect_s)
        self._may_connect_s = at_s + self._connect_s
        if at_s < self._ends_until_s:
            self._may_connect_s += self._laws.end_each_s
        self._result.attempts_s.append(at_s)
        if self._has_room(at_s):
            self._enqueue(number, at_s, at_s)
            return
        self._result.met_full += 1
        self._send_syn_again(number, at_s, 0, at_s)

    def _send_syn_again(self, number: int, at_s: float, again: int, began_s: float) -> None:
        """A SYN was dropped: it is sent again, or its client gives up."""
        self._result.dropped += 1
        doublings = max(0, again - self._laws.syns_each_second + 1)
        next_s = self._rounded_up(at_s + SYN_AGAIN_S * 2**doublings)
        gives_up_s = began_s + self._laws.connect_timeout_s
        if next_s < gives_up_s:
            entry = (next_s, _SYN_AGAIN, number, again + 1, began_s)
            heappush(self._due, entry)
            return
        self._result.failed += 1
        self._connect_later(number, gives_up_s)

    def _syn_again(self, number: int, at_s: float, again: int, began_s: float) -> None:
        if at_s != self._group_s:
            self._group_s = at_s
            self._group_passes = self._has_room(at_s)
        if not self._group_passes:
            self._send_syn_again(number, at_s, again, began_s)
        elif self._has_room(at_s):
            self._enqueue(number, at_s, at_s)
        else:
            # Connected for the client alone.
            self._send_data_again(number, 0, at_s)

    def _send_data_again(self, number: int, again: int, connected_s: float) -> None:
        """The first data met a full queue: it is sent again, or its client gives up."""
        self._result.dropped += 1
        next_s = self._rounded_up(connected_s + _DATA_AGAIN_S * 2**again)
        gives_up_s = connected_s + self._laws.answer_timeout_s
        if next_s < gives_up_s:
            entry = (next_s, _DATA_AGAIN, number, again + 1, connected_s)
            heappush(self._due, entry)
            return
        self._result.phantoms += 1
        self._connect_later(number, gives_up_s)

    def _data_again(self, number: int, at_s: float, again: int, connected_s: float) -> None:
        if self._has_room(at_s):
            self._enqueue(number, at_s, connected_s)
        else:
            self._send_data_again(number, again, connected_s)

    def _has_room(self, at_s: float) -> bool:
        """Whether the listen queue has room: who is in it has an instant at which it is accepted
        that lies ahead.
        """
        waiting_s = self._last_accept_s - at_s
        if waiting_s <= 0:
            return True
        # A connection that is accepted now is in the queue no more.
        waiting = math.ceil(waiting_s / self._accept_s - 1e-9)
        return waiting <= self._laws.backlog

    def _enqueue(self, number: int, at_s: float, connected_s: float) -> None:
        """The server's kernel has the connection from now on."""
        accepted_s = max(at_s, self._last_accept_s + self._accept_s)
        answered_s = max(accepted_s, self._last_answer_s + self._answer_s)
        self._last_accept_s = accepted_s
        # The server works for those who have given up, too.
        self._last_answer_s = answered_s
        gives_up_s = connected_s + self._laws.answer_timeout_s
        if answered_s <= gives_up_s:
            self._result.back_s.append(answered_s)
            return
        self._result.phantoms += 1
        self._connect_later(number, gives_up_s)

    def _connect_later(self, number: int, at_s: float) -> None:
        failed = self._failed.get(number, 0) + 1
        self._failed[number] = failed
        due_s = at_s + self._policy.wait_s(self._seed, self._event, number, failed)
        heappush(self._due, (due_s, _ATTEMPT, number, 0, due_s))

    def _rounded_up(self, at_s: float) -> float:
        """When a timer fires that is due at an instant."""
        offset_s = self._laws.timers_s
        grains = math.ceil((at_s - offset_s) / TIMER_GRAIN_S - 1e-9)
        return grains * TIMER_GRAIN_S + offset_s
