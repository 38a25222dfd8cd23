"""What a test connection says once it is open: the protocol's handshake, a heartbeat, a goodbye."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import NamedTuple

from asyncli.findings import losses
from asyncli.findings.protocol_codes import remedy_of_broken, remedy_of_refusals
from asyncli.findings.tls import NO_HTTP2_REMEDY
from asyncli.model.certificates import not_http2
from asyncli.model.errors import HostError
from asyncli.model.masks import masked_url
from asyncli.model.plan import Plan
from asyncli.model.protocol_table import CUT_ANSWER
from asyncli.model.quotation import Quotation
from asyncli.model.records import ProtocolCounts
from asyncli.model.text import printable, quoted
from asyncli.model.values import Target
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, Event, Protocol, ProtocolError

# The longest wait for the answer to a goodbye.
_GOODBYE_S = 1.0
# A wrong server sends the body right after the head, in another packet.
_BODY_S = 0.2
_SHORTEST_WAIT_S = 0.001
_READ_BYTES = 8192
# The beginning of an answer that is shown.
_SHOWN_BYTES = 40
# Of a short frame that is not masked.
_WEBSOCKET_HEAD = 2
_FORCE = "a soak starts anyway with --force"
# HTTP's lowest status of an error.
_LOWEST_ERROR = 400
# The row of the only connection in the protocol's arrays.
_ROW = 0


class _Question(NamedTuple):
    """What is sent, and what is awaited then. ``kind``: of the event that answers it; ``answered``:
    the word for that; ``limit``: the flag that says how long to wait.
    """

    name: str
    kind: int
    answered: str
    limit: str
    limit_s: float

    @property
    def is_handshake(self) -> bool:
        return self.kind == ESTABLISHED


class ProbeExchange:
    """The protocol's handshake, heartbeat and goodbye on a connection to ``target``, which has this
    ``number`` in the plan. ``beats``: whether a heartbeat is sent; a protocol without heartbeats
    sends none. ``quotation``: hides the plan's secrets in what the server sent.

    ``steps``: the completed steps, with their seconds; ``status``: of the heartbeat's answer.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        number: int,
        protocol: Protocol,
        beats: bool,
        quotation: Quotation,
    ) -> None:
        self.plan = plan
        self.target = target
        self.steps: list[tuple[str, float]] = []
        self.status = 0
        self._number = number
        self._protocol = protocol
        self._beats = beats and protocol.silence_s is None
        self._quotation = quotation
        # The first message that came in place of the awaited answer.
        self._other_message = b""

    def run(self, sock: socket.socket, received: bytes) -> None:
        """Say it all. ``received``: what the peer has sent already. Raises :class:`HostError`."""
        protocol = self._protocol
        self._require_http2(sock)
        if self.plan.force and not self._beats:
            return
        if protocol.handshake is not None:
            opening = protocol.handshake(_ROW, self._number)
            received = self._shake_hands(sock, opening, received)
        if self._beats:
            self._beat(sock, received)
        with contextlib.suppress(OSError):
            self._say_goodbye(sock)
        protocol.forget(_ROW)

    @property
    def is_error_answer(self) -> bool:
        return self.status >= _LOWEST_ERROR

    def _failure(self, why: str) -> HostError:
        return HostError(f"{masked_url(self.target.url)}: {why}")

    def _require_http2(self, sock: socket.socket) -> None:
        """Raise :class:`HostError` if the plan asks for HTTP/2 and TLS chose another protocol."""
        if not self.plan.http2 or not isinstance(sock, ssl.SSLSocket):
            return
        why = not_http2(sock.selected_alpn_protocol())
        if why:
            raise self._failure(f"{why}; {NO_HTTP2_REMEDY}")

    def _shake_hands(self, sock: socket.socket, opening: bytes, received: bytes) -> bytes:
        """Return what came after the handshake."""
        limit_s = self.plan.connect_timeout_s
        question = _Question("handshake", ESTABLISHED, "granted", "--connect-timeout", limit_s)
        granted = self._ask(sock, opening, received, question)
        counts = ProtocolCounts()
        self._protocol.add_counts(counts)
        if counts.streams_lost:
            lost = losses.streams_lost(counts.streams_lost)
            raise self._failure(f"{lost.evidence}; {lost.remedy}; {_FORCE}")
        return granted.rest

    def _beat(self, sock: socket.socket, received: bytes) -> None:
        """Send a heartbeat, and keep the status of its answer."""
        question = _Question("heartbeat", ANSWER, "answered", "--timeout", self.plan.timeout_s)
        heartbeat = self._protocol.heartbeat
        if not heartbeat:
            heartbeat = self._protocol.heartbeat_for(_ROW, self._number)
        self.status = self._ask(sock, heartbeat, received, question).status
        if self.plan.protocol == "http" and self.plan.method == "HEAD":
            self._require_no_body(sock)

    def _require_no_body(self, sock: socket.socket) -> None:
        """Raise :class:`HostError` if the server sends a body after its answer to a HEAD."""
        try:
            sock.settimeout(_BODY_S)
            body = sock.recv(_READ_BYTES)
            if body:
                self._protocol.feed(_ROW, body, False)
        except ProtocolError as error:
            remedy = remedy_of_broken("http", {str(error): 1})
            reason = self._quotation(printable(str(error)))
            raise self._failure(f"the heartbeat failed: {reason}; {remedy}") from None
        except OSError:
            pass

    def _say_goodbye(self, sock: socket.socket) -> None:
        """Wait until the server has closed too, or for as long as a goodbye may take."""
        goodbye = self._protocol.goodbye(_ROW)
        if not goodbye:
            return
        sock.settimeout(_GOODBYE_S)
        sock.sendall(goodbye)
        ends_s = time.monotonic() + _GOODBYE_S
        while sock.recv(_READ_BYTES):
            if time.monotonic() >= ends_s:
                return

    def _ask(self, sock: socket.socket, data: bytes, received: bytes, question: _Question) -> Event:
        """Send ``data``, and return the event that answers it. Raises :class:`HostError` if none
        does, and ssl.SSLError for a failure of TLS.
        """
        try:
            return self._answer(sock, data, received, question)
        except TimeoutError:
            why = self._why_unanswered(question)
        except ssl.SSLError:
            raise  # reported as a failure of TLS
        except (ProtocolError, OSError) as error:
            why = self._why_failed(question, error)
        if question.is_handshake:
            why = f"{why}; {_FORCE}"
        raise self._failure(f"the {question.name} {why}")

    def _answer(
        self, sock: socket.socket, data: bytes, received: bytes, question: _Question
    ) -> Event:
        """Send ``data``, and read until the event that answers it, which becomes a step. Raises
        OSError and :class:`ProtocolError`.
        """
        self._other_message = b""
        began_s = time.monotonic()
        ends_s = began_s + question.limit_s
        answer_has_begun = False
        sock.settimeout(question.limit_s)
        sock.sendall(data)
        while True:
            if not received:
                sock.settimeout(max(_SHORTEST_WAIT_S, ends_s - time.monotonic()))
                received = sock.recv(_READ_BYTES)
            event = self._protocol.feed(_ROW, received, not question.is_handshake)
            took_s = time.monotonic() - began_s
            if event is not None:
                sock.sendall(event.reply)
                if event.kind == question.kind:
                    self.steps.append((self._step(question, event, received), took_s))
                    return event
                self._take_other(event, received)
            if not received:
                raise ProtocolError(CUT_ANSWER if answer_has_begun else "closed without an answer")
            answer_has_begun = event is None
            if took_s > question.limit_s:
                raise TimeoutError
            received = b""

    def _take_other(self, event: Event, received: bytes) -> None:
        """An event that answers nothing. Raises :class:`ProtocolError` if the server closes."""
        if event.kind == CLOSING:
            raise ProtocolError(f"closed, code {event.status}")
        if event.messages and not self._other_message:
            self._other_message = received

    def _step(self, question: _Question, event: Event, received: bytes) -> str:
        """``heartbeat answered 200``, ``handshake granted``; an answer over raw TCP, which has no
        status, is shown itself.
        """
        step = f"{question.name} {question.answered}"
        if self.plan.protocol == "tcp":
            shown = self._quotation(quoted(received, _SHOWN_BYTES))
            return f"{step} {shown}" if shown else step
        if event.status:
            return f"{step} {event.status}"
        return step

    def _why_unanswered(self, question: _Question) -> str:
        """No answer came in time."""
        missed = ""
        awaited = self._protocol.awaits(_ROW)
        if awaited:
            missed = f": no {awaited} came"
        remedy = "see the server's log"
        if question.is_handshake:
            remedy = remedy_of_refusals(self.plan.protocol)
        if self._other_message and self.plan.ws_message is not None:
            message = self._other_message[_WEBSOCKET_HEAD:]
            shown = self._quotation(quoted(message, _SHOWN_BYTES - _WEBSOCKET_HEAD))
            missed = f": it sent another message ({shown}), and no echo of --ws-message"
            remedy = "leave --ws-message out, for pings, which every server answers"
        limit = f"{question.limit} ({question.limit_s:g} s)"
        return f"was not answered within {limit}{missed}; {remedy}"

    def _why_failed(self, question: _Question, error: ProtocolError | OSError) -> str:
        """The server closed the connection, reset it, or broke the protocol."""
        reason = "reset without an answer"
        if isinstance(error, ProtocolError):
            reason = self._quotation(printable(str(error)))
        if question.is_handshake:
            return f"was refused: {reason}; {remedy_of_refusals(self.plan.protocol, [reason])}"
        return f"failed: {reason}; {remedy_of_broken(self.plan.protocol, {reason: 1})}"
