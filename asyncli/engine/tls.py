"""TLS as a transport: the network seam again, over the kernel's. To the tables a handshake is a connect that takes longer.

OpenSSL does the whole handshake: verification, SNI, ALPN, client certificates, tickets. Of TLS 1.3 the two traffic secrets are
then taken over (protocols/tls13.py) and OpenSSL's object is let go; of TLS 1.2 it stays, 18 kB or more a connection.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime

from asyncli.certificates import client_context, not_http2, reason_of
from asyncli.core.life import DEADLINE, TLS_DEADLINE
from asyncli.engine.net import READABLE, WRITABLE, RealNet, replace_by_closing
from asyncli.engine.proxied_net import ProxiedNet
from asyncli.engine.tls_handshake import Handshake, KeyLog, TlsError
from asyncli.protocols.tls13 import SUITES, AlertError, RecordError, RecordLayer
from asyncli.records import Tick, TlsCounts
from asyncli.values import TlsOptions

# A step of a handshake takes up to 0.8 ms: with these a turn stays near the 10 ms that the tables allow theirs.
_MOST_STEPS = 12
_READ_BYTES = 16_384
# Reasons are OpenSSL's and the alerts' names: a few. What a peer can make them say is bounded all the same.
_MOST_REASONS = 20


class TlsNet:
    """``net`` with TLS on every connection. ``names``: the host asked for, by destination; ``patience_s``: for a handshake;
    ``http2``: the server must choose it.
    """

    def __init__(
        self, net: RealNet | ProxiedNet, options: TlsOptions, names: Sequence[str], patience_s: float, http2: bool = False
    ) -> None:
        self._net, self._names, self._resume, self._patience_s = net, names, options.tls_resume, patience_s
        self._context, self._http2 = client_context(options, http2=http2), http2
        self._keylog = KeyLog(self._context)
        self._layer = RecordLayer()
        self._shaking: dict[int, Handshake] = {}
        self._kept: dict[int, Handshake] = {}  # with OpenSSL's object for good
        self._sessions: dict[int, ssl.SSLSession] = {}  # by destination
        self._ends: dict[bytes, str] = {}  # of certificates
        # What the kernel had no room for: sealed, so it is sent as it is or never.
        self._unsent: dict[int, bytes] = {}
        # Plaintext that came with the end of a handshake, and handles whose peer has said that nothing follows.
        self._early: dict[int, bytes] = {}
        self._ended: set[int] = set()
        # Handles for which any of the above holds: all others take the short way.
        self._odd: set[int] = set()
        # By handle: the events that the table wants, and those that the kernel is asked for; 0: none, it is not watched.
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
            self._say_goodbye(handle)
        self._forget(handle)
        self._net.close(handle, abort)

    def watch(self, handle: int, events: int, again: bool = False) -> None:
        self._wanted[handle] = events
        self._watch(handle)

    def poll(self, most: int, wait_s: float = 0.0) -> list[tuple[int, int]]:
        self._steps = _MOST_STEPS
        waiting = [(handle, READABLE) for handle in (*self._ended, *self._early)] if self._ended or self._early else []
        return waiting + self._net.poll(most, 0.0 if waiting else wait_s)

    def late_event(self, handle: int) -> str | None:
        shaking = self._shaking.get(handle)
        if shaking is None or shaking.stood is None:
            return DEADLINE
        # TLS's handshake has as long as TCP's had.
        return TLS_DEADLINE if self.clock() - shaking.stood >= self._patience_s else None

    def acknowledged(self, handle: int) -> bool:
        return self._net.acknowledged(handle)

    def add_counts(self, tick: Tick) -> None:
        self._net.add_counts(tick)
        tick.tls, self._counts = self._counts, TlsCounts()
        tick.tls.objects = len(self._kept)

    # -- bytes

    def send(self, handle: int, data: bytes) -> int:
        if handle not in self._odd:
            if data:
                self._transmit(handle, self._layer.seal(handle, data))
            return len(data)
        flight = b""
        if (shaking := self._shaking.get(handle)) is not None:
            flight = self._shake(handle, shaking)
        elif handle in self._unsent:
            raise BlockingIOError(errno.EAGAIN, "")
        self._transmit(handle, flight + self._seal(handle, data))
        return len(data)

    def recv(self, handle: int, most: int) -> bytes:
        if handle in self._odd:
            return self._receive(handle)
        data = self._raw_recv(handle, most)
        return self._unseal(handle, data) if data else data

    def _receive(self, handle: int) -> bytes:
        """The long way."""
        if handle in self._shaking:
            raise BlockingIOError(errno.EAGAIN, "")  # send() tells how a connect goes
        if (early := self._early.pop(handle, b"")):
            self._settle(handle)
            return early
        if handle in self._ended:
            return b""
        if unsent := self._unsent.pop(handle, b""):
            self._settle(handle)
            self._transmit(handle, unsent)
            self._watch(handle)
        data = self._raw_recv(handle, _READ_BYTES)
        return self._unseal(handle, data) if data else data

    def _unseal(self, handle: int, data: bytes) -> bytes:
        kept = self._kept.get(handle)
        plain, reply, ended = self._feed(handle, data) if kept is None else self._read_kept(handle, kept, data)
        if reply:
            self._transmit(handle, reply)
        if ended:
            if not plain:
                return b""
            self._ended.add(handle)
            self._odd.add(handle)
        if not plain:
            raise BlockingIOError(errno.EAGAIN, "")
        return plain

    def _feed(self, handle: int, data: bytes) -> tuple[bytes, bytes, bool]:
        try:
            return self._layer.feed(handle, data)
        except AlertError as error:
            self._layer.forget(handle)
            raise self._failed(handle, f"alert {error}") from None
        except RecordError as error:
            if handle not in self._unsent:
                with contextlib.suppress(OSError):
                    self._raw_send(handle, self._layer.alert(handle, error.alert))
            # After a fatal alert nothing is said, close_notify neither (RFC 8446, section 6.2).
            self._layer.forget(handle)
            raise self._failed(handle, str(error)) from None

    def _seal(self, handle: int, data: bytes) -> bytes:
        kept = self._kept.get(handle)
        if kept is None:
            return self._layer.seal(handle, data) if data else b""
        if data:
            kept.tls.write(data)
        return kept.outgoing.read()

    def _transmit(self, handle: int, data: bytes) -> None:
        """Send what is sealed, after what waits; what the kernel has no room for follows."""
        taken = 0
        if handle not in self._unsent:
            with contextlib.suppress(BlockingIOError):
                taken = self._raw_send(handle, data)
        if taken < len(data):
            self._unsent[handle] = self._unsent.get(handle, b"") + data[taken:]
            self._odd.add(handle)
            self._watch(handle)

    # -- the handshake

    def _begin(self, handle: int, destination: int, began: float) -> None:
        if handle >= len(self._asked):
            more = [0] * (handle + 1024 - len(self._asked))
            self._asked.extend(more)
            self._wanted.extend(more)
        self._wanted[handle] = self._asked[handle] = 0
        self._shaking[handle] = Handshake(destination, began)
        self._odd.add(handle)

    def _shake(self, handle: int, shaking: Handshake) -> bytes:
        """Go on; our last words once it is over. Raises BlockingIOError until then."""
        if shaking.stood is None:
            self._raw_send(handle, b"")  # tells whether TCP's handshake is over, and how
            shaking.stood = self.clock()
            self._counts.tcp_us.add((shaking.stood - shaking.began) * 1e6)
        if self._steps <= 0:
            raise BlockingIOError(errno.EAGAIN, "")
        self._steps -= 1
        try:
            if not shaking.random:
                shaking.begin(self._context, self._names[shaking.place], self._sessions.get(shaking.place))
                shaking.step()
                hello = shaking.outgoing.read()
                shaking.random = hello[11:43]
                self._transmit(handle, hello)
                raise BlockingIOError(errno.EAGAIN, "")
            if unsent := self._unsent.pop(handle, b""):
                self._transmit(handle, unsent)
            data = self._raw_recv(handle, _READ_BYTES)
            if not data:
                raise TlsError("the server closed the connection in mid-handshake")
            over = shaking.feed(data)
        except TlsError as error:
            if shaking.random and (alert := shaking.outgoing.read()) and handle not in self._unsent:
                with contextlib.suppress(OSError):
                    self._raw_send(handle, alert)
            raise self._failed(handle, error.reason) from None
        except BlockingIOError:
            self._watch(handle)
            raise
        except OSError as error:
            raise self._failed(handle, f"{error.strerror} in mid-handshake") from None
        if over:
            return self._established(handle, shaking)
        if flight := shaking.outgoing.read():
            self._transmit(handle, flight)
        self._watch(handle)
        raise BlockingIOError(errno.EAGAIN, "")

    def _established(self, handle: int, shaking: Handshake) -> bytes:
        """The handshake is over: what is to be sent before all else."""
        assert shaking.stood is not None
        counts, tls, flight = self._counts, shaking.tls, shaking.outgoing.read()
        if self._http2 and (why := not_http2(tls.selected_alpn_protocol())):
            raise self._failed(handle, why)
        suite, version = (tls.cipher() or ("", "", 0))[0], tls.version() or ""
        # The first one's object is kept where a session is wanted: its ticket comes later.
        wants_ticket = self._resume and shaking.place not in self._sessions
        if version == "TLSv1.3" and suite in SUITES and not wants_ticket:
            self._layer.open(handle, suite, *self._keylog.take(shaking.random))
            plain, reply, ended = self._feed(handle, shaking.partial) if shaking.partial else (b"", b"", False)
        else:
            self._keylog.clear()
            self._kept[handle] = shaking
            plain, reply, ended = self._read_kept(handle, shaking, shaking.partial)
        del self._shaking[handle]
        counts.handshake_us.add((self.clock() - shaking.stood) * 1e6)
        counts.full += not tls.session_reused
        counts.resumed += bool(tls.session_reused)
        spoken = f"{version} {suite}"
        counts.spoken[spoken] = counts.spoken.get(spoken, 0) + 1
        if not tls.session_reused and (ends := self._ends_of(tls)):
            counts.certificates[ends] = counts.certificates.get(ends, 0) + 1
        if plain:
            self._early[handle] = plain
        if ended:
            self._ended.add(handle)
        self._settle(handle)
        return flight + reply

    def _ends_of(self, tls: ssl.SSLObject) -> str:
        """When the peer's certificate ends; "" where it is not verified, and of more than a few."""
        der = tls.getpeercert(binary_form=True) or b""
        if der not in self._ends and len(self._ends) < _MOST_REASONS and (told := tls.getpeercert()):
            self._ends[der] = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(told["notAfter"])), UTC).isoformat()
        return self._ends.get(der, "")

    def _read_kept(self, handle: int, kept: Handshake, data: bytes) -> tuple[bytes, bytes, bool]:
        """As the record layer's ``feed``, by OpenSSL's object."""
        kept.incoming.write(data)
        heard: list[bytes] = []
        ended = False
        try:
            while not ended:
                heard.append(kept.tls.read(_READ_BYTES))
                ended = not heard[-1]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self._failed(handle, reason_of(error)) from None
        # Asking for it copies it.
        wanted = self._resume and kept.place not in self._sessions
        if wanted and (session := kept.tls.session) is not None and session.has_ticket:
            self._sessions[kept.place] = session
        return b"".join(heard), kept.outgoing.read(), ended

    # -- ends

    def _failed(self, handle: int, reason: str) -> TlsError:
        """Counted."""
        error, counts = TlsError(reason), self._counts
        if handle in self._shaking:
            self._keylog.clear()
        reasons = counts.failed if handle in self._shaking else counts.ended
        reason = error.reason
        if reason in reasons or len(reasons) < _MOST_REASONS:
            reasons[reason] = reasons.get(reason, 0) + 1
        return error

    def _say_goodbye(self, handle: int) -> None:
        """close_notify, where the kernel takes it at once; the peer may be gone."""
        if handle in self._shaking or handle in self._unsent:
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
        if handle in self._odd:
            for of in (self._shaking, self._kept, self._unsent, self._early):
                of.pop(handle, None)
            self._ended.discard(handle)
            self._odd.discard(handle)
        self._wanted[handle] = self._asked[handle] = 0

    def _settle(self, handle: int) -> None:
        """It may be odd no more."""
        if not any(handle in of for of in (self._shaking, self._kept, self._unsent, self._early, self._ended)):
            self._odd.discard(handle)

    def _watch(self, handle: int) -> None:
        """Have the kernel report what the table wants and what TLS needs; nothing before the table watches."""
        if not self._wanted[handle]:
            return
        shaking = self._shaking.get(handle)
        needed = self._wanted[handle]
        if shaking is not None:
            needed = READABLE if shaking.random else READABLE | WRITABLE
        if handle in self._unsent:
            needed |= WRITABLE
        if needed != self._asked[handle]:
            self._net.watch(handle, needed, again=self._asked[handle] != 0)
            self._asked[handle] = needed
