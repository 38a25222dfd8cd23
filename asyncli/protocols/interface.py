"""The interface between the engine and a protocol: bytes in, events out. Protocols have no socket
and no clock.

The engine owns the transport, the deadlines and the counts. One protocol object serves all rows of
a table: typed arrays by row hold their state, and ``partial`` those that are in the middle of a
message.

- The engine compares each read with the last whole answer first: equal bytes never reach the
protocol. So a protocol makes its
  answers equal if it can (one ping payload for all rows), and expects one answer at a time, but of
  a row that has not read for a time.
- That last answer came whole in one read, without a reply, on a row without a partial message.
- An answer proves that this question was read. Where the peer echoes, each heartbeat carries a
nonce that the answer must
  return (nonces.py), so neither an answer sent in advance nor a repeated one is accepted. Where it
  does not, an answer that
  nothing asked for breaks the protocol.
- What was answered in the bytes before an end counts, though one read has both.
- NEWS keeps a row alive and answers no heartbeat. The protocol decides which unsolicited messages
are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from asyncli.model.records import ProtocolCounts

#: Kinds of events: the answer to a heartbeat or a request; another message of the peer; the peer
#: closes; the peer accepts :meth:`Protocol.handshake`.
ANSWER, NEWS, CLOSING, ESTABLISHED = range(4)


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow; ``str()`` says what. ``answer``: the
    heartbeat's answer, if it came before that in the same read. ``status``: of HTTP, by which the
    peer refused a handshake; 0: by none.
    """

    answer: Event | None = None
    status = 0


class Event(msgspec.Struct, frozen=True):
    """The meaning of one read. ``status``: of HTTP, or the code of a goodbye; 0: none.
    ``body_bytes``: without framing. ``reply``: bytes to send at once. ``messages``: unsolicited
    messages. ``rest``: with ESTABLISHED the bytes after it, with CLOSING the peer's reason, with
    ANSWER a version that ends it. ``own``: with ANSWER, equal bytes differ by row or time. ``end``:
    with ANSWER, how the connection ends after it in the same read: the peer closes, or breaks the
    protocol. ``answers``: with ANSWER, how many unanswered heartbeats it answers.
    """

    status: int
    keep_alive: bool
    body_bytes: int = 0
    kind: int = ANSWER
    reply: bytes = b""
    messages: int = 0
    rest: bytes = b""
    own: bool = False
    end: Event | ProtocolError | None = None
    answers: int = 1


class Protocol:
    """The protocol of one table's held connections. Each has a ``feed``, and overrides what differs
    from the defaults here.
    """

    #: The rows that are in the middle of a message; always the same mapping.
    partial: dict[int, Any]
    #: The heartbeat if it is the same for all rows and each time; None: see :meth:`heartbeat_for`.
    heartbeat: bytes | None = None
    #: The answers to all heartbeats with a nonce, and by row the number of the one that it owes;
    #: None: there are no nonces.
    answers: Sequence[bytes] | None = None
    owed = bytearray()
    #: Whether equal bytes are the same answer at any time: not where an answer names its request,
    #: as by the stream of HTTP/2.
    repeats = True
    #: handshake(row, target) -> the first bytes to this URL of the plan, if the peer must accept
    #: them before the row is held; None: there is no handshake. Until ESTABLISHED the row is in
    #: ``partial``.
    handshake: Callable[[int, int], bytes] | None = None
    #: Whether answers to heartbeats have a status of HTTP, beside a handshake before them.
    answers_have_status = False
    #: Whether the answer to the last of several unanswered heartbeats answers those before it.
    last_answers_all = False
    #: Whether :meth:`further_heartbeat` is answered as a heartbeat is.
    answers_further = True
    #: None: rows send heartbeats. Else they listen, and a connection is dead after this long a
    #: silence.
    silence_s: float | None = None
    #: How long to wait for the peer's close after a goodbye; None: as long as for an answer.
    close_timeout_s: float | None = None
    #: What closes an idle connection in the protocol's way, after which the peer closes it; b"":
    #: nothing.
    goodbye_bytes = b""

    def heartbeat_for(self, row: int, target: int) -> bytes:
        """The next heartbeat of a row that is connected to this URL of the plan, if ``heartbeat``
        is None.
        """
        raise NotImplementedError

    def further_heartbeat(self, row: int, target: int) -> bytes:
        """What a row sends in place of a heartbeat while another one is unanswered, because it does
        not read.
        """
        return self.heartbeat or self.heartbeat_for(row, target)

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        """The meaning of a read, where b"" is the end of the stream; None: nothing yet.
        ``awaiting``: how many heartbeats are unanswered: more than one only of a row that has not
        read for a time. Raises :class:`ProtocolError`.
        """
        raise NotImplementedError

    def awaits(self, row: int) -> str:
        """The name of the message that a handshake waits for, or ""."""
        return ""

    def goodbye(self, row: int) -> bytes:
        """``goodbye_bytes``, or what this row sends in their place."""
        return self.goodbye_bytes

    def take_rows_missing_streams(self) -> list[int]:
        """The rows that have begun, since the last call, to miss streams."""
        return []

    def reopen_streams(self, row: int, target: int) -> bytes:
        """Requests that open the missing streams of a row, between two heartbeats; b"": none is
        missing.
        """
        return b""

    def may_reopen(self, row: int) -> bool:
        """Whether the protocol allows the row's lost connection to be opened again."""
        return True

    def reopen_delay_s(self, row: int) -> float:
        """The least wait before a reconnect that the row's peer has asked for."""
        return 0.0

    def add_counts(self, counts: ProtocolCounts) -> None:
        """Add the protocol's own counts since the last call."""

    def forget(self, row: int) -> None:
        """The row's connection is gone."""
        self.partial.pop(row, None)
