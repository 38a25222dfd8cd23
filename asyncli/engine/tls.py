"""TLS as a net over another net. To the tables a TLS handshake is a connect that takes longer.

OpenSSL does the whole handshake: verification, SNI, ALPN, client certificates, tickets. With TLS
1.3 the record layer of protocols/tls13.py then takes over the two traffic secrets, and OpenSSL's
object is freed; with TLS 1.2 it is kept, 18 kB or more a connection.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime

from asyncli.core.life import DEADLINE, TLS_DEADLINE
from asyncli.engine.net import (
    PEER_CLOSED,
    READABLE,
    WRITABLE,
    KernelNet,
    Unacknowledged,
    replace_by_closing,
)
from asyncli.engine.tls_handshake import Handshake, KeyLog, TlsError
from asyncli.model.certificates import client_context, not_http2, reason_of
from asyncli.model.records import Tick, TlsCounts
from asyncli.model.values import TlsOptions
from asyncli.protocols.tls13 import SUITES, AlertError, RecordError, RecordLayer

# A step of a handshake takes up to 0.8 ms: this many keep a turn near the 10 ms that the tables
# allow.
_MOST_STEPS = 12
_READ_BYTES = 16_384
# Reasons are OpenSSL's and the names of alerts, so few; the bound holds for a hostile peer too.
_MOST_REASONS = 20


class TlsNet:
    """``net`` with TLS on every connection. ``names``: the host name (SNI) by destination;
    ``patience_s``: the deadline of a handshake; ``offered``: protocols by ALPN; ``http2``: the
    server must choose it.
    """

    def __init__(
        self, net: KernelNet, options: TlsOptions, names: Sequence[str], patience_s: float,
        offered: Sequence[str] = ("http/1.1",), http2: bool = False,
    ) -> None:  # fmt: skip
        self._net, self._names, self._resume, self._patience_s = (
            net,
            names,
            options.tls_resume,
            patience_s,
        )
        self._context, self._http2 = client_context(options, offered), http2
        self._keylog = KeyLog(self._context)
        self._layer = RecordLayer()
        self._handshakes: dict[int, Handshake] = {}
        self._kept: dict[int, Handshake] = {}  # connections that keep OpenSSL's object
        self._sessions: dict[int, ssl.SSLSession] = {}  # by destination
        self._expiries: dict[bytes, str] = {}  # by certificate
        # Sealed records that the kernel has no room for yet: they must be sent unchanged, or never.
        self._unsent: dict[int, bytes] = {}
        # Plaintext that came with the end of a handshake, and handles whose peer has ended: None by
        # close_notify, else the error that the next call raises, because it came in one read with
        # bytes before it.
        self._early: dict[int, bytes] = {}
        self._ended: dict[int, TlsError | None] = {}
        # The handles in any of the above; all others take the fast path.
        self._slow: set[int] = set()
        # By handle: the events that the table wants, and those that the kernel watches; 0: none,
        # not watched.
        self._wanted, self._asked = array("H"), array("H")
        self._steps = _MOST_STEPS
        self._counts = TlsCounts()
        self.clock = net.clock
        self._raw_send, self._raw_recv = net.send, net.recv

    def fileno(self) -> int:
        return self._net.fileno()

    # -- connections

    def connect(self, destination: int, source: int) -> int:
        began = self.clock()
        handle = self._net.connect(destination, source)
        self._begin(handle, destination, began)
        return handle

    def replace(self, handle: int, destination: int, source: int) -> int:
        return replace_by_closing(self, handle, destination, source)

    def close(self, handle: int, abort: bool) -> None:
        if not abort:
            self._send_close_notify(handle)
        self._forget(handle)
        self._net.close(handle, abort)

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        self._wanted[handle] = events
        self._watch(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        self._steps = _MOST_STEPS
        waiting = (
            [(handle, READABLE) for handle in (*self._ended, *self._early)]
            if self._ended or self._early
            else []
        )
        return waiting + self._net.poll(most, 0.0 if waiting else wait_s)

    def limit_segments(self, is_limited: bool) -> None:
        self._net.limit_segments(is_limited)

    def segment_bytes(self, handle: int) -> int:
        return self._net.segment_bytes(handle)

    def deafen(self, handle: int) -> None:
        self._net.deafen(handle)

    def hear(self, handle: int) -> None:
        self._net.hear(handle)
        self._asked[handle] = READABLE
        self.watch(handle, READABLE, again=True)

    def late_event(self, handle: int) -> str | None:
        handshake = self._handshakes.get(handle)
        if handshake is None or handshake.tcp_done is None:
            return DEADLINE
        # The TLS handshake may take as long as TCP's.
        return TLS_DEADLINE if self.clock() - handshake.tcp_done >= self._patience_s else None

    def acknowledged(self, handle: int) -> bool:
        return self._net.acknowledged(handle)

    def unacknowledged(self, handle: int) -> Unacknowledged | None:
        return self._net.unacknowledged(handle)

    def retransmitted(self, handle: int) -> int:
        return self._net.retransmitted(handle)

    def add_counts(self, tick: Tick) -> None:
        self._net.add_counts(tick)
        tick.tls, self._counts = self._counts, TlsCounts()
        tick.tls.objects = len(self._kept)

    # -- bytes

    def send(self, handle: int, data: bytes) -> int:
        if handle not in self._slow:
            if data:
                self._transmit(handle, self._layer.seal(handle, data))
            return len(data)
        if (error := self._ended.get(handle)) is not None:
            raise error
        flight = b""
        if (handshake := self._handshakes.get(handle)) is not None:
            flight = self._continue_handshake(handle, handshake)
        elif handle in self._unsent:
            raise BlockingIOError(errno.EAGAIN, "")
        self._transmit(handle, flight + self._seal(handle, data))
        return len(data)

    def recv(self, handle: int, most: int) -> bytes:
        if handle in self._slow:
            return self._receive(handle)
        data = self._raw_recv(handle, most)
        return self._unseal(handle, data) if data else data

    def _receive(self, handle: int) -> bytes:
        """recv() off the fast path."""
        if handle in self._handshakes:
            raise BlockingIOError(errno.EAGAIN, "")  # only send() continues a handshake
        if early := self._early.pop(handle, b""):
            self._leave_slow_path(handle)
            return early
        if handle in self._ended:
            if (error := self._ended[handle]) is not None:
                raise error
            return b""
        if unsent := self._unsent.pop(handle, b""):
            self._leave_slow_path(handle)
            self._transmit(handle, unsent)
            self._watch(handle)
        data = self._raw_recv(handle, _READ_BYTES)
        return self._unseal(handle, data) if data else data

    def _unseal(self, handle: int, data: bytes) -> bytes:
        kept = self._kept.get(handle)
        plain, reply, ended = (
            self._feed(handle, data) if kept is None else self._read_kept(handle, kept, data)
        )
        if reply:
            self._transmit(handle, reply)
        if ended:
            if not plain:
                return b""
            self._end_after(handle)
        if not plain:
            raise BlockingIOError(errno.EAGAIN, "")
        return plain

    def _end_after(self, handle: int, error: TlsError | None = None) -> None:
        """The peer has ended after bytes that are returned first; ``error``: not by
        close_notify.
        """
        self._ended.setdefault(handle, error)
        self._slow.add(handle)

    def _feed(self, handle: int, data: bytes) -> tuple[bytes, bytes, bool]:
        try:
            return self._layer.feed(handle, data)
        except AlertError as error:
            self._layer.forget(handle)
            failed, plain = self._failed(handle, f"alert {error}"), error.plain
        except RecordError as error:
            if handle not in self._unsent:
                with contextlib.suppress(OSError):
                    self._raw_send(handle, self._layer.alert(handle, error.alert))
            # After a fatal alert nothing is sent, not even close_notify (RFC 8446, section 6.2).
            self._layer.forget(handle)
            failed, plain = self._failed(handle, str(error)), error.plain
        if not plain:
            raise failed
        self._end_after(handle, failed)
        return plain, b"", True

    def _seal(self, handle: int, data: bytes) -> bytes:
        kept = self._kept.get(handle)
        if kept is None:
            return self._layer.seal(handle, data) if data else b""
        if data:
            kept.tls.write(data)
        return kept.outgoing.read()

    def _transmit(self, handle: int, data: bytes) -> None:
        """Send sealed records after those that wait; what the kernel has no room for is
        sent later.
        """
        taken = 0
        if handle not in self._unsent:
            with contextlib.suppress(BlockingIOError):
                taken = self._raw_send(handle, data)
        if taken < len(data):
            self._unsent[handle] = self._unsent.get(handle, b"") + data[taken:]
            self._slow.add(handle)
            self._watch(handle)

    # -- the handshake

    def _begin(self, handle: int, destination: int, began: float) -> None:
        if handle >= len(self._asked):
            zeros = [0] * (handle + 1024 - len(self._asked))
            self._asked.extend(zeros)
            self._wanted.extend(zeros)
        self._wanted[handle] = self._asked[handle] = 0
        self._handshakes[handle] = Handshake(destination, began)
        self._slow.add(handle)

    def _continue_handshake(self, handle: int, handshake: Handshake) -> bytes:
        """Continue the handshake; once it is over, returns the records to send first. Raises
        BlockingIOError until then.
        """
        if handshake.tcp_done is None:
            self._raw_send(handle, b"")  # returns the outcome of TCP's handshake
            handshake.tcp_done = self.clock()
            self._counts.tcp_us.add((handshake.tcp_done - handshake.began) * 1e6)
        if self._steps <= 0:
            raise BlockingIOError(errno.EAGAIN, "")
        self._steps -= 1
        try:
            if not handshake.random:
                handshake.begin(
                    self._context,
                    self._names[handshake.destination],
                    self._sessions.get(handshake.destination),
                )
                handshake.step()
                hello = handshake.outgoing.read()
                handshake.random = hello[11:43]
                self._transmit(handle, hello)
                raise BlockingIOError(errno.EAGAIN, "")
            if unsent := self._unsent.pop(handle, b""):
                self._transmit(handle, unsent)
            data = self._raw_recv(handle, _READ_BYTES)
            if not data:
                raise TlsError("the server closed the connection in mid-handshake")
            over = handshake.feed(data)
        except TlsError as error:
            if (
                handshake.random
                and (alert := handshake.outgoing.read())
                and handle not in self._unsent
            ):
                with contextlib.suppress(OSError):
                    self._raw_send(handle, alert)
            raise self._failed(handle, error.reason) from None
        except BlockingIOError:
            self._watch(handle)
            raise
        except OSError as error:
            raise self._failed(handle, f"{error.strerror} in mid-handshake") from None
        if over:
            return self._established(handle, handshake)
        if flight := handshake.outgoing.read():
            self._transmit(handle, flight)
        self._watch(handle)
        raise BlockingIOError(errno.EAGAIN, "")

    def _established(self, handle: int, handshake: Handshake) -> bytes:
        """The handshake is over: returns the records to send first."""
        assert handshake.tcp_done is not None
        counts, tls, flight = self._counts, handshake.tls, handshake.outgoing.read()
        if self._http2 and (why := not_http2(tls.selected_alpn_protocol())):
            raise self._failed(handle, why)
        suite, version = (tls.cipher() or ("", "", 0))[0], tls.version() or ""
        # To resume sessions, keep the first connection's object: its ticket comes later.
        wants_ticket = self._resume and handshake.destination not in self._sessions
        if version == "TLSv1.3" and suite in SUITES and not wants_ticket:
            self._layer.open(handle, suite, *self._keylog.take(handshake.random))
            plain, reply, ended = (
                self._feed(handle, handshake.partial) if handshake.partial else (b"", b"", False)
            )
        else:
            self._keylog.clear()
            self._kept[handle] = handshake
            plain, reply, ended = self._read_kept(handle, handshake, handshake.partial)
        del self._handshakes[handle]
        counts.handshake_us.add((self.clock() - handshake.tcp_done) * 1e6)
        counts.full += not tls.session_reused
        counts.resumed += bool(tls.session_reused)
        spoken = f"{version} {suite}"
        counts.spoken[spoken] = counts.spoken.get(spoken, 0) + 1
        if not tls.session_reused and (expiry := self._expiry_of(tls)):
            counts.certificates[expiry] = counts.certificates.get(expiry, 0) + 1
        if plain:
            self._early[handle] = plain
        if ended:
            self._ended.setdefault(handle, None)
        self._leave_slow_path(handle)
        return flight + reply

    def _expiry_of(self, tls: ssl.SSLObject) -> str:
        """When the peer's certificate expires (ISO 8601); "" if it is not verified, or beyond the
        first few certificates.
        """
        der = tls.getpeercert(binary_form=True) or b""
        if (
            der not in self._expiries
            and len(self._expiries) < _MOST_REASONS
            and (fields := tls.getpeercert())
        ):
            self._expiries[der] = datetime.fromtimestamp(
                ssl.cert_time_to_seconds(str(fields["notAfter"])), UTC
            ).isoformat()
        return self._expiries.get(der, "")

    def _read_kept(self, handle: int, kept: Handshake, data: bytes) -> tuple[bytes, bytes, bool]:
        """The record layer's ``feed``, by OpenSSL's object."""
        kept.incoming.write(data)
        plain: list[bytes] = []
        ended = False
        try:
            while not ended:
                plain.append(kept.tls.read(_READ_BYTES))
                ended = not plain[-1]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            failed = self._failed(handle, reason_of(error))
            if not any(plain):
                raise failed from None
            self._end_after(handle, failed)
            ended = True
        # Reading tls.session copies it.
        wanted = self._resume and kept.destination not in self._sessions
        if wanted and (session := kept.tls.session) is not None and session.has_ticket:
            self._sessions[kept.destination] = session
        return b"".join(plain), kept.outgoing.read(), ended

    # -- ends

    def _failed(self, handle: int, reason: str) -> TlsError:
        """Count a failure; returns its error."""
        error, counts = TlsError(reason), self._counts
        if handle in self._handshakes:
            self._keylog.clear()
        reasons = counts.failed if handle in self._handshakes else counts.ended
        reason = error.reason
        if reason in reasons or len(reasons) < _MOST_REASONS:
            reasons[reason] = reasons.get(reason, 0) + 1
        return error

    def _send_close_notify(self, handle: int) -> None:
        """Send close_notify, if the kernel takes it at once; the peer may be gone."""
        if handle in self._handshakes or handle in self._unsent:
            return
        with contextlib.suppress(OSError):
            kept = self._kept.get(handle)
            if self._layer.has_keys(handle):
                self._raw_send(handle, self._layer.alert(handle, "close_notify"))
            elif kept is not None:
                with contextlib.suppress(ssl.SSLError):
                    kept.tls.unwrap()
                self._raw_send(handle, kept.outgoing.read())

    def _forget(self, handle: int) -> None:
        self._layer.forget(handle)
        if handle in self._slow:
            for rows in (self._handshakes, self._kept, self._unsent, self._early):
                rows.pop(handle, None)
            self._ended.pop(handle, None)
            self._slow.discard(handle)
        self._wanted[handle] = self._asked[handle] = 0

    def _leave_slow_path(self, handle: int) -> None:
        """Return the handle to the fast path, if nothing keeps it off."""
        if not any(
            handle in rows
            for rows in (self._handshakes, self._kept, self._unsent, self._early, self._ended)
        ):
            self._slow.discard(handle)

    def _watch(self, handle: int) -> None:
        """Watch for what the table wants and what TLS needs; nothing before the table watches."""
        if not self._wanted[handle]:
            return
        handshake = self._handshakes.get(handle)
        needed = self._wanted[handle]
        if handshake is not None:
            needed = READABLE if handshake.random else READABLE | WRITABLE
        # Who watches for the peer's end alone does not send what waits either.
        if handle in self._unsent and needed != PEER_CLOSED:
            needed |= WRITABLE
        if needed != self._asked[handle]:
            self._net.watch(handle, needed, again=self._asked[handle] != 0)
            self._asked[handle] = needed
