"""A connection before a run: TLS, what is agreed on and what it costs in CPU time, and then the protocol's first words."""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from asyncli.certificates import client_context, not_http2, reason_of
from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread
from asyncli.errors import HostError
from asyncli.findings import losses
from asyncli.findings.protocol_codes import remedy_of_broken, remedy_of_refusals
from asyncli.findings.tls import NO_HTTP2_REMEDY, refuses_ours
from asyncli.plan import Plan
from asyncli.protocol_table import PROTOCOLS
from asyncli.protocols.interface import ANSWER, ESTABLISHED, LEAVING, Event, Protocol, ProtocolError
from asyncli.protocols.proxy_header import ProxyHeader
from asyncli.records import ProtocolCounts
from asyncli.template import Data
from asyncli.text import printable
from asyncli.values import Target, TlsOptions

# The first handshake of a process loads what the others find, and other programs only lengthen one: the least of some tells.
_TIMES = 10
# A server that refuses our certificate says so at once, and mostly sends tickets if it does not.
_FIRST_WORD_MS = 200
# For the answer to a goodbye.
_GOODBYE_S = 1.0
_READ_BYTES = 8192
# Of an answer.
_SHOWN_BYTES = 40


class Certificate(msgspec.Struct, frozen=True):
    """A server's. ``subject`` and ``issuer`` as RFC 4514 writes them; ``ends``: ISO 8601, UTC; ``lasts_days``: from begin to end;
    ``key``: "EC 256", "RSA 2048".
    """

    subject: str
    issuer: str
    names: list[str]
    ends: str
    days_left: float
    lasts_days: float
    key: str
    signature: str


class TlsFacts(msgspec.Struct, frozen=True):
    """What the server of a plan agreed to. ``handshake_s``: of the clock, and ``cpu_s`` of it our own CPU time; the quickest."""

    protocol: str
    suite: str
    alpn: str | None
    verified: bool
    handshake_s: float
    cpu_s: float
    certificate: Certificate | None


class Probed(NamedTuple):
    """What the first URL's server agreed to in TLS, and by URL each step that was done, with its seconds; none: not reached.
    ``dead``: with heartbeats, addresses that are not reached beside one of the same name that is.
    """

    tls: TlsFacts | None
    steps: dict[str, list[tuple[str, float]]]
    dead: list[Destination]


def probe(plan: Plan, spread: Spread, data: Data | None = None, *, beats: bool = False) -> Probed:
    """Shake hands with each URL's first address, in TLS and in its protocol; with ``beats`` with the first that is reached, and
    send a heartbeat too. Blocking: call it in a thread.

    It connects to none where all of that is nothing, and says no more of who is not reached: the ramp does. Raises
    :class:`~asyncli.errors.HostError` for what fails, in one line.
    """
    protocol = build_shard(plan, spread, data).new_protocol(lambda row: row)
    if plan.tls is None and protocol.handshake is None and not beats:
        return Probed(None, {}, [])
    context = None if plan.tls is None else client_context(plan.tls, http2=plan.http2)
    tls, steps, dead = None, {}, []
    for number, target in enumerate(plan.targets):
        places = [one for one in spread.destinations if one.target == number]
        silent = [one for one in places if not _is_reached(plan, one)] if beats and len(places) > 1 else []
        if there := next((one for one in places if one not in silent), next(iter(places), None)):
            talk = _Talk(plan, target, number, protocol, beats)
            tls = _of_target(talk, there, context, 1 if tls or context is None else _TIMES) or tls
            steps[target.url] = talk.steps
            dead += silent if talk.steps else []
    return Probed(tls, steps, dead)


def _of_target(talk: _Talk, there: Destination, context: ssl.SSLContext | None, times: int) -> TlsFacts | None:
    found, plan, target = None, talk.plan, talk.target
    for _ in range(times):
        began = time.monotonic()
        try:
            sock = _connected(plan, there)
        except OSError:
            return found
        with sock:
            speak = None if talk.steps else talk.speak
            if speak is not None:
                talk.steps.append(("connected", time.monotonic() - began))
            if context is None:
                talk.speak(sock, b"")
                return None
            try:
                one = _shake(sock, context, target.name, speak)
            except OSError as error:
                why = _why(error, plan, target, there)
                raise HostError(f"{target.url}: {why}") from None
        if found is None or one.cpu_s < found.cpu_s:
            found = one
    return found


class _Talk:
    """The first words on a connection to ``target``, as the engine has them. ``steps``: as in :class:`Probed`."""

    def __init__(self, plan: Plan, target: Target, number: int, protocol: Protocol, beats: bool) -> None:
        self.plan, self.target = plan, target
        self.steps: list[tuple[str, float]] = []
        self._number, self._protocol, self._beats = number, protocol, beats and protocol.silence_s is None

    def speak(self, sock: socket.socket, heard: bytes) -> None:
        """``heard``: what the peer has said already."""
        protocol = self._protocol
        alpn = sock.selected_alpn_protocol() if isinstance(sock, ssl.SSLSocket) else "h2"
        if self.plan.http2 and (why := not_http2(alpn)):
            raise HostError(f"{self.target.url}: {why}; {NO_HTTP2_REMEDY}")
        if protocol.handshake is not None:
            heard = self._exchange(sock, protocol.handshake(0, self._number), heard, ESTABLISHED).rest
            protocol.add_counts(counts := ProtocolCounts())
            if counts.streams_lost:
                said = losses.streams_lost(counts.streams_lost)
                raise HostError(f"{self.target.url}: {said.evidence}; {said.remedy}; a soak goes on with --force")
        if self._beats:
            self._exchange(sock, protocol.heartbeat or protocol.heartbeat_for(0, self._number), heard, ANSWER)
        with contextlib.suppress(OSError):
            if bye := protocol.goodbye(0):
                sock.settimeout(_GOODBYE_S)
                sock.sendall(bye)
                ends = time.monotonic() + _GOODBYE_S
                while sock.recv(_READ_BYTES) and time.monotonic() < ends:
                    pass
        protocol.forget(0)

    def _exchange(self, sock: socket.socket, words: bytes, heard: bytes, awaited: int) -> Event:
        """Send ``words``, and read until the event that is ``awaited``."""
        shakes, began = awaited == ESTABLISHED, time.monotonic()
        what, done, flag, limit_s = "heartbeat", "answered", "--timeout", self.plan.timeout_s
        if shakes:
            what, done, flag, limit_s = "handshake", "granted", "--connect-timeout", self.plan.connect_timeout_s
        try:
            sock.settimeout(limit_s)
            sock.sendall(words)
            while True:
                if not heard:
                    sock.settimeout(max(0.001, began + limit_s - time.monotonic()))
                    heard = sock.recv(_READ_BYTES)
                event = self._protocol.feed(0, heard, not shakes)
                took_s = time.monotonic() - began
                if event is not None:
                    sock.sendall(event.reply)
                    if event.kind == awaited:
                        # Raw TCP has no other word for what an answer is.
                        shown = repr(heard[:_SHOWN_BYTES]) if self.plan.protocol == "tcp" else event.status
                        self.steps.append((f"{what} {done}{f' {shown}' if shown else ''}", took_s))
                        return event
                    if event.kind == LEAVING:
                        raise ProtocolError(f"closed, code {event.status}")
                if not heard:
                    raise ProtocolError("closed without an answer")
                if took_s > limit_s:
                    raise TimeoutError
                heard = b""
        except TimeoutError:
            missed = f": no {name} came" if (name := self._protocol.awaits(0)) else ""
            remedy = remedy_of_refusals(self.plan.protocol) if shakes else "see the server's log"
            why = f"was not answered within {flag} ({limit_s:g} s){missed}; {remedy}"
        except ssl.SSLError:
            raise  # of the whole of TLS
        except (ProtocolError, OSError) as error:
            said = printable(str(error)) if isinstance(error, ProtocolError) else "reset without an answer"
            remedy = remedy_of_refusals(self.plan.protocol, [said]) if shakes else remedy_of_broken(self.plan.protocol, {said: 1})
            why = f"{'was refused' if shakes else 'failed'}: {said}; {remedy}"
        forced = "; a soak goes on with --force" if shakes else ""
        raise HostError(f"{self.target.url}: the {what} {why}{forced}")


def _connected(plan: Plan, there: Destination) -> socket.socket:
    sock = socket.socket(there.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(plan.connect_timeout_s)
        sock.connect(there.sockaddr)
        if plan.proxy_protocol is not None:
            sock.sendall(ProxyHeader(plan.proxy_protocol, there.address, there.port).of(0))
    except OSError:
        sock.close()
        raise
    return sock


def _is_reached(plan: Plan, there: Destination) -> bool:
    with contextlib.suppress(OSError), _connected(plan, there):
        return True
    return False


def _shake(
    sock: socket.socket, context: ssl.SSLContext, name: str, speak: Callable[[socket.socket, bytes], None] | None = None
) -> TlsFacts:
    """``speak``: go on so, after what the server says next: of TLS 1.3 it sees our certificate after our handshake is over."""
    began, cpu = time.monotonic(), time.thread_time()
    with context.wrap_socket(sock, server_hostname=name) as tls:
        handshake_s, cpu_s = time.monotonic() - began, time.thread_time() - cpu
        cipher, der = tls.cipher(), tls.getpeercert(binary_form=True)
        heard = b""
        if speak is not None and tls.version() == "TLSv1.3":
            first = select.poll()
            first.register(tls, select.POLLIN)
            first.poll(_FIRST_WORD_MS)
            tls.setblocking(False)
            with contextlib.suppress(ssl.SSLWantReadError, ConnectionError):
                heard = tls.recv(_READ_BYTES)
        if speak is not None:
            speak(tls, heard)
        return TlsFacts(
            protocol=tls.version() or "",
            suite=cipher[0] if cipher else "",
            alpn=tls.selected_alpn_protocol(),
            verified=context.verify_mode == ssl.CERT_REQUIRED,
            handshake_s=handshake_s,
            cpu_s=cpu_s,
            certificate=read_certificate(der) if der else None,
        )


def read_certificate(der: bytes) -> Certificate | None:
    """None for what is no certificate that can be read."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    try:
        one = x509.load_der_x509_certificate(der)
        try:
            names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            listed = [str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)]
        except x509.ExtensionNotFound:
            listed = []
        key: Any = one.public_key()
        size = f" {key.key_size}" if isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey) else ""
        kind = "EC" if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__.strip("_").removesuffix("PublicKey")
        digest = one.signature_hash_algorithm
        ends = one.not_valid_after_utc
        return Certificate(
            subject=printable(one.subject.rfc4514_string()),
            issuer=printable(one.issuer.rfc4514_string()),
            names=[printable(name) for name in listed],
            ends=ends.isoformat(timespec="seconds"),
            days_left=(ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 86_400,
            lasts_days=(ends - one.not_valid_before_utc).total_seconds() / 86_400,
            key=f"{kind}{size}",
            signature="none" if digest is None else digest.name,
        )
    except (ValueError, TypeError, AttributeError):
        return None


_INSECURE = "--insecure goes on unverified"
# OpenSSL's X509_V_ERR_... of what is told with more than its own words (openssl/x509_vfy.h).
_NOT_YET, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64
_SHORT_KEY = 66
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)


def _why(error: Exception, plan: Plan, target: Target, there: Destination) -> str:
    """What a handshake failed of, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_trusted(error.verify_code, error.verify_message, target, _shown_by(plan, target, there), plan.ca)
    plain, secure = PROTOCOLS[target.protocol].schemes
    see = f"see the server's log; if it speaks no TLS there, write {plain}://"
    if isinstance(error, TimeoutError):
        return f"its handshake of TLS takes longer than --connect-timeout ({plan.connect_timeout_s:g} s); {see}"
    reason = reason_of(error) if isinstance(error, ssl.SSLError) and error.reason else ""
    if reason in ("wrong version number", "http request", "record layer failure", "packet length too long"):
        return f"port {target.port} does not speak TLS; write {plain}://, or its port of {secure}"
    if "protocol version" in reason or reason in ("unsupported protocol", "no protocols available", "wrong ssl version"):
        return f"no version of TLS in common ({_versions(plan.tls_options)} allowed here); see --tls-min and --tls-max"
    if reason in ("alert handshake failure", "no cipher match", "no shared cipher"):
        return "no cipher suite in common, or it asks for a certificate; see --tls-ciphers, --client-cert and its log"
    if refuses_ours(reason):
        return f"it refused our certificate ({reason}); name one of an authority that it trusts: --client-cert, --client-key"
    if isinstance(error, ConnectionResetError):
        reason = "the server reset the connection"
    elif not reason or reason == "unexpected eof while reading":
        reason = "the server closed the connection" if isinstance(error, ssl.SSLError | ConnectionError) else str(error)
    return f"the handshake of TLS failed ({reason}); {see}"


def _versions(options: TlsOptions) -> str:
    return " to ".join(dict.fromkeys((options.tls_min or "1.2", options.tls_max or "1.3")))


def _shown_by(plan: Plan, target: Target, there: Destination) -> Certificate | None:
    """The certificate that cannot be trusted, by another handshake that trusts it."""
    try:
        with _connected(plan, there) as sock:
            options = msgspec.structs.replace(plan.tls_options, ca=None, insecure=True)
            return _shake(sock, client_context(options), target.name).certificate
    except (OSError, HostError):
        return None


def _why_not_trusted(code: int, message: str, target: Target, shown: Certificate | None, authority: str | None) -> str:
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        names = "" if shown is None else f", but for {_few(shown.names) or shown.subject}"
        return f"its certificate is not for {target.name}{names}; aim at a name that it has, or {_INSECURE}"
    if code in (_EXPIRED, _NOT_YET) and shown is not None:
        if code == _EXPIRED:
            return f"its certificate expired on {shown.ends[:10]}, {-shown.days_left:.1f} days ago; renew it, or {_INSECURE}"
        begins = datetime.datetime.fromisoformat(shown.ends) - datetime.timedelta(days=shown.lasts_days)
        return f"its certificate is not valid before {begins:%F %R} UTC by this host's clock; see both clocks, or {_INSECURE}"
    if code == _SHORT_KEY:
        return f"its key is too short ({'unknown' if shown is None else shown.key}); issue one with a longer key, or {_INSECURE}"
    if code in _UNKNOWN_AUTHORITY:
        by = "" if shown is None else f" ({'itself' if shown.issuer == shown.subject else shown.issuer})"
        whom = "an authority unknown here" if authority is None else f"another authority than that of --ca {authority}"
        return f"its certificate is signed by {whom}{by}; name the authority's file with --ca, or {_INSECURE}"
    return f"its certificate cannot be trusted ({message}); renew it, or {_INSECURE}"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
