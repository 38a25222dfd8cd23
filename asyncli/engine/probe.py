"""A test connection before a run: the TLS handshake, its parameters and CPU time, then the
protocol's handshake.
"""

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

from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Destination, Spread, show
from asyncli.findings import losses
from asyncli.findings.probes import probe_answered, probe_refused
from asyncli.findings.protocol_codes import remedy_of_broken, remedy_of_refusals
from asyncli.findings.server import address_dropped
from asyncli.findings.tls import NO_HTTP2_REMEDY, refuses_ours, unknown_name
from asyncli.model.certificates import client_context, not_http2, reason_of
from asyncli.model.errors import HostError
from asyncli.model.plan import Plan, plan_document
from asyncli.model.private_values import masked_url, secret_texts
from asyncli.model.protocol_table import CUT_ANSWER, PROTOCOLS
from asyncli.model.quotation import Quotation
from asyncli.model.records import Finding, ProtocolCounts
from asyncli.model.template import Data
from asyncli.model.text import printable, quoted
from asyncli.model.values import Target
from asyncli.protocols.interface import ANSWER, CLOSING, ESTABLISHED, Event, Protocol, ProtocolError
from asyncli.protocols.proxy_header import ProxyHeader

# The first handshake of a process loads libraries, and other programs only slow a handshake down:
# the fastest of several counts.
_TIMES = 10
# A server that refuses our certificate says so at once; one that accepts it mostly sends tickets.
_FIRST_RECORD_MS = 200
# The longest wait for the answer to a goodbye.
_GOODBYE_S = 1.0
# A wrong server sends the body right after the head, in another packet.
_BODY_S = 0.2
_READ_BYTES = 8192
# The beginning of an answer that is shown.
_SHOWN_BYTES = 40
# Of a short frame that is not masked.
_WEBSOCKET_HEAD = 2
_FORCE = "a soak starts anyway with --force"


class Certificate(msgspec.Struct, frozen=True):
    """A server's certificate. ``subject`` and ``issuer`` by RFC 4514; ``ends``: ISO 8601, UTC;
    ``lasts_days``: from its begin to its end; ``key``: "EC 256", "RSA 2048".
    """

    subject: str
    issuer: str
    names: list[str]
    ends: str
    days_left: float
    lasts_days: float
    key: str
    signature: str
    #: The certificates that the server sends with it; None: unknown. ``top``: the issuer of the
    #: last one, RFC 4514.
    sent: int | None = None
    top: str = ""


class TlsFacts(msgspec.Struct, frozen=True):
    """What the server negotiated. Of the fastest handshake, ``handshake_s`` is the duration and
    ``cpu_s`` our CPU time.
    """

    protocol: str
    suite: str
    alpn: str | None
    verified: bool
    handshake_s: float
    cpu_s: float
    certificate: Certificate | None


class Probed(NamedTuple):
    """TLS parameters of the first URL's server, and by URL the completed steps with their seconds;
    no steps: not reached. ``findings``: error answers, unreachable addresses of names that have a
    reachable one, and with --force what failed.
    """

    tls: TlsFacts | None
    steps: dict[str, list[tuple[str, float]]]
    findings: list[Finding]


class _UntrustedError(HostError):
    """The server's certificate was refused. ``shown``: what an unverified handshake negotiates."""

    shown: TlsFacts | None = None


def probe(plan: Plan, spread: Spread, data: Data | None = None, *, beats: bool = False) -> Probed:
    """Do the TLS and protocol handshakes with each URL's first address; with ``beats``, with the
    first reachable one, and send a heartbeat too. Blocking: call it in a thread.

    Without TLS, protocol handshake and ``beats`` it does not connect. Unreachable servers are no
    error here: the ramp reports them. Raises :class:`~asyncli.model.errors.HostError` for what
    fails, in one line. With ``plan.force`` that is a finding, and without ``beats`` only the TLS
    handshake is done.
    """
    shard = build_shard(plan, spread, data)
    protocol = shard.new_protocol(int)
    # Each handshake and heartbeat is that of the first connection.
    quotation = Quotation((*secret_texts(plan_document(plan)), *shard.fields(int).of_data(0)))
    if plan.tls is None and not beats and (plan.force or protocol.handshake is None):
        return Probed(None, {}, [])
    context = None if plan.tls is None else client_context(plan.tls, plan.offered_alpn)
    tls, steps, findings = None, {}, []
    for number, target in enumerate(plan.targets):
        addresses = [one for one in spread.destinations if one.target == number]
        unreachable = (
            [one for one in addresses if not _is_reachable(plan, one)]
            if beats and len(addresses) > 1
            else []
        )
        if address := next(
            (one for one in addresses if one not in unreachable), next(iter(addresses), None)
        ):
            exchange = _Exchange(plan, target, number, protocol, beats, quotation)
            try:
                found = _probe_address(
                    exchange, address, context, 1 if tls or context is None else _TIMES
                )
            except HostError as error:
                if not plan.force:
                    raise
                found = error.shown if isinstance(error, _UntrustedError) else None
                findings.append(probe_refused(str(error)))
            tls = tls or found
            steps[target.url] = exchange.steps
            findings += [address_dropped(show(one)) for one in unreachable if exchange.steps]
            if exchange.status >= 400:
                findings.append(
                    probe_answered(masked_url(target.url), exchange.status, plan.tls is not None)
                )
    return Probed(tls, steps, findings)


def _probe_address(
    exchange: _Exchange, address: Destination, context: ssl.SSLContext | None, times: int
) -> TlsFacts | None:
    fastest, plan, target = None, exchange.plan, exchange.target
    for _ in range(times):
        began = time.monotonic()
        try:
            sock = _connect(plan, address)
        except OSError:
            return fastest
        with sock:
            run = None if exchange.steps else exchange.run
            if run is not None:
                exchange.steps.append(("connected", time.monotonic() - began))
            if context is None:
                exchange.run(sock, b"")
                return None
            try:
                tls = _handshake(sock, context, target.name, run)
            except ssl.SSLCertVerificationError as error:
                shown = _unverified(plan, target, address)
                certificate = None if shown is None else shown.certificate
                why = _explain_untrusted(
                    error.verify_code, error.verify_message, target, certificate, plan.ca
                )
                refused = _UntrustedError(f"{masked_url(target.url)}: {why}")
                refused.shown = shown
                raise refused from None
            except OSError as error:
                raise HostError(
                    f"{masked_url(target.url)}: {_explain(error, plan, target)}"
                ) from None
        if fastest is None or tls.cpu_s < fastest.cpu_s:
            fastest = tls
    return fastest


class _Exchange:
    """The protocol's handshake, heartbeat and goodbye on a connection to ``target``. ``steps``: as
    in :class:`Probed`.
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
        self.plan, self.target = plan, target
        self.steps: list[tuple[str, float]] = []
        self.status = 0
        self._quotation = quotation
        self._number, self._protocol, self._beats = (
            number,
            protocol,
            beats and protocol.silence_s is None,
        )

    def run(self, sock: socket.socket, received: bytes) -> None:
        """``received``: what the peer has sent already."""
        protocol = self._protocol
        alpn = sock.selected_alpn_protocol() if isinstance(sock, ssl.SSLSocket) else "h2"
        if self.plan.http2 and (why := not_http2(alpn)):
            raise HostError(f"{masked_url(self.target.url)}: {why}; {NO_HTTP2_REMEDY}")
        if self.plan.force and not self._beats:
            return
        if protocol.handshake is not None:
            received = self._request(
                sock, protocol.handshake(0, self._number), received, ESTABLISHED
            ).rest
            protocol.add_counts(counts := ProtocolCounts())
            if counts.streams_lost:
                lost = losses.streams_lost(counts.streams_lost)
                raise HostError(
                    f"{masked_url(self.target.url)}: {lost.evidence}; {lost.remedy}; {_FORCE}"
                )
        if self._beats:
            beat = protocol.heartbeat or protocol.heartbeat_for(0, self._number)
            self.status = self._request(sock, beat, received, ANSWER).status
            if self.plan.protocol == "http" and self.plan.method == "HEAD":
                self._require_no_body(sock)
        with contextlib.suppress(OSError):
            if bye := protocol.goodbye(0):
                sock.settimeout(_GOODBYE_S)
                sock.sendall(bye)
                ends = time.monotonic() + _GOODBYE_S
                while sock.recv(_READ_BYTES) and time.monotonic() < ends:
                    pass
        protocol.forget(0)

    def _require_no_body(self, sock: socket.socket) -> None:
        """Raise :class:`HostError` if the server sends a body after its answer to a HEAD."""
        try:
            sock.settimeout(_BODY_S)
            if more := sock.recv(_READ_BYTES):
                self._protocol.feed(0, more, False)
        except ProtocolError as error:
            remedy = remedy_of_broken("http", {str(error): 1})
            why = self._quotation(printable(str(error)))
            raise HostError(
                f"{masked_url(self.target.url)}: the heartbeat failed: {why}; {remedy}"
            ) from None
        except OSError:
            pass

    def _request(self, sock: socket.socket, data: bytes, received: bytes, awaited: int) -> Event:
        """Send ``data``, and read until an event of the kind ``awaited``."""
        shakes, began, begun, others = awaited == ESTABLISHED, time.monotonic(), False, b""
        what, done, flag, limit_s = "heartbeat", "answered", "--timeout", self.plan.timeout_s
        if shakes:
            what, done, flag, limit_s = (
                "handshake",
                "granted",
                "--connect-timeout",
                self.plan.connect_timeout_s,
            )
        try:
            sock.settimeout(limit_s)
            sock.sendall(data)
            while True:
                if not received:
                    sock.settimeout(max(0.001, began + limit_s - time.monotonic()))
                    received = sock.recv(_READ_BYTES)
                event = self._protocol.feed(0, received, not shakes)
                took_s = time.monotonic() - began
                if event is not None:
                    sock.sendall(event.reply)
                    if event.kind == awaited:
                        # An answer over raw TCP has no status.
                        shown = (
                            self._quotation(quoted(received, _SHOWN_BYTES))
                            if self.plan.protocol == "tcp"
                            else event.status
                        )
                        self.steps.append((f"{what} {done}{f' {shown}' if shown else ''}", took_s))
                        return event
                    if event.kind == CLOSING:
                        raise ProtocolError(f"closed, code {event.status}")
                    others = others or (received if event.messages else b"")
                if not received:
                    raise ProtocolError(CUT_ANSWER if begun else "closed without an answer")
                begun = event is None
                if took_s > limit_s:
                    raise TimeoutError
                received = b""
        except TimeoutError:
            missed = f": no {name} came" if (name := self._protocol.awaits(0)) else ""
            remedy = remedy_of_refusals(self.plan.protocol) if shakes else "see the server's log"
            if others and self.plan.ws_message is not None:
                shown = self._quotation(
                    quoted(others[_WEBSOCKET_HEAD:], _SHOWN_BYTES - _WEBSOCKET_HEAD)
                )
                missed = f": it sent another message ({shown}), and no echo of --ws-message"
                remedy = "leave --ws-message out, for pings, which every server answers"
            why = f"was not answered within {flag} ({limit_s:g} s){missed}; {remedy}"
        except ssl.SSLError:
            raise  # reported as a failure of TLS
        except (ProtocolError, OSError) as error:
            reason = (
                self._quotation(printable(str(error)))
                if isinstance(error, ProtocolError)
                else "reset without an answer"
            )
            spoken = self.plan.protocol
            remedy = (
                remedy_of_refusals(spoken, [reason])
                if shakes
                else remedy_of_broken(spoken, {reason: 1})
            )
            why = f"{'was refused' if shakes else 'failed'}: {reason}; {remedy}"
        raise HostError(
            f"{masked_url(self.target.url)}: the {what} {why}{f'; {_FORCE}' if shakes else ''}"
        )


def _connect(plan: Plan, address: Destination) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(plan.connect_timeout_s)
        sock.connect(address.sockaddr)
        if plan.proxy_protocol is not None:
            sock.sendall(ProxyHeader(plan.proxy_protocol, address.address, address.port).of(0))
    except OSError:
        sock.close()
        raise
    return sock


def _is_reachable(plan: Plan, address: Destination) -> bool:
    with contextlib.suppress(OSError), _connect(plan, address):
        return True
    return False


def _handshake(
    sock: socket.socket,
    context: ssl.SSLContext,
    name: str,
    run: Callable[[socket.socket, bytes], None] | None = None,
) -> TlsFacts:
    """Do a TLS handshake, then call ``run``; with TLS 1.3 after a read, since the server checks our
    certificate only then.
    """
    began, cpu = time.monotonic(), time.thread_time()
    with context.wrap_socket(sock, server_hostname=name) as tls:
        handshake_s, cpu_s = time.monotonic() - began, time.thread_time() - cpu
        cipher, der = tls.cipher(), tls.getpeercert(binary_form=True)
        received = b""
        if run is not None and tls.version() == "TLSv1.3":
            readable = select.poll()
            readable.register(tls, select.POLLIN)
            readable.poll(_FIRST_RECORD_MS)
            tls.setblocking(False)
            with contextlib.suppress(ssl.SSLWantReadError, ConnectionError):
                received = tls.recv(_READ_BYTES)
        if run is not None:
            run(tls, received)
        return TlsFacts(
            protocol=tls.version() or "",
            suite=cipher[0] if cipher else "",
            alpn=tls.selected_alpn_protocol(),
            verified=context.verify_mode == ssl.CERT_REQUIRED,
            handshake_s=handshake_s,
            cpu_s=cpu_s,
            certificate=_with_chain(read_certificate(der) if der else None, tls),
        )


def read_certificate(der: bytes) -> Certificate | None:
    """The fields of a certificate; None if it cannot be parsed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    try:
        one = x509.load_der_x509_certificate(der)
        try:
            names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            listed = [
                str(name)
                for kind in (x509.DNSName, x509.IPAddress)
                for name in names.get_values_for_type(kind)
            ]
        except x509.ExtensionNotFound:
            listed = []
        key: Any = one.public_key()
        size = (
            f" {key.key_size}"
            if isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
            else ""
        )
        kind = (
            "EC"
            if isinstance(key, ec.EllipticCurvePublicKey)
            else type(key).__name__.strip("_").removesuffix("PublicKey")
        )
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


def _with_chain(certificate: Certificate | None, tls: ssl.SSLSocket) -> Certificate | None:
    """``certificate`` with what is known of the others that the server sent."""
    # Public from Python 3.13 on.
    sent = getattr(tls, "get_unverified_chain", None)
    if sent is None:
        inner = tls._sslobj  # type: ignore[attr-defined]
        sent = getattr(inner, "get_unverified_chain", None)
    if certificate is None or sent is None:
        return certificate
    chain = [
        one if isinstance(one, bytes) else ssl.PEM_cert_to_DER_cert(one.public_bytes())
        for one in sent() or ()
    ]
    last = read_certificate(chain[-1]) if chain else None
    return msgspec.structs.replace(
        certificate, sent=len(chain), top="" if last is None else last.issuer
    )


_INSECURE = "--insecure skips verification"
# OpenSSL's X509_V_ERR_... that are explained further (openssl/x509_vfy.h).
_NOT_YET, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64
_SHORT_KEY = 66
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)


def _explain(error: Exception, plan: Plan, target: Target) -> str:
    """Why a handshake failed, and what to do."""
    plain, secure = PROTOCOLS[target.protocol].schemes
    see = f"see the server's log; if it does not speak TLS there, write {plain}://"
    if isinstance(error, TimeoutError):
        return f"the TLS handshake took longer than --connect-timeout ({plan.connect_timeout_s:g} s); {see}"
    reason = reason_of(error) if isinstance(error, ssl.SSLError) and error.reason else ""
    if reason in (
        "wrong version number",
        "http request",
        "record layer failure",
        "packet length too long",
    ):
        return f"port {target.port} does not speak TLS; write {plain}://, or its {secure} port"
    if "protocol version" in reason or reason in (
        "unsupported protocol",
        "no protocols available",
        "wrong ssl version",
    ):
        allowed = " to ".join(dict.fromkeys((plan.tls_min or "1.2", plan.tls_max or "1.3")))
        return f"no version of TLS in common ({allowed} allowed here); see --tls-min and --tls-max"
    if reason in ("alert handshake failure", "no cipher match", "no shared cipher"):
        return "no cipher suite in common, or it requires a certificate; see --tls-ciphers, --client-cert and its log"
    if unknown_name(reason):
        return f"the server has no host of the name {target.name} (SNI); use a name that it has, in the URL or with --sni"
    if refuses_ours(reason):
        return f"it refused our certificate ({reason}); give one from an authority that it trusts: --client-cert, --client-key"
    if isinstance(error, ConnectionResetError):
        reason = "the server reset the connection"
    elif not reason or reason == "unexpected eof while reading":
        reason = (
            "the server closed the connection"
            if isinstance(error, ssl.SSLError | ConnectionError)
            else str(error)
        )
    return f"the TLS handshake failed ({reason}); {see}"


def _unverified(plan: Plan, target: Target, address: Destination) -> TlsFacts | None:
    """What an unverified handshake negotiates."""
    try:
        with _connect(plan, address) as sock:
            options = msgspec.structs.replace(plan.tls_options, ca=None, insecure=True)
            return _handshake(sock, client_context(options, plan.offered_alpn), target.name)
    except (OSError, HostError):
        return None


def _explain_untrusted(
    code: int, message: str, target: Target, shown: Certificate | None, authority: str | None
) -> str:
    if code in (_WRONG_NAME, _WRONG_ADDRESS) and shown is not None and not shown.names:
        # RFC 9525, section 6.3; Chrome since version 58, Go since 1.15.
        alone = f"its certificate has no subjectAltName, and its subject ({shown.subject}) no longer counts"
        return f"{alone}; issue one with a subjectAltName of {target.name}, or {_INSECURE}"
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        names = "" if shown is None else f", but for {_few(shown.names) or shown.subject}"
        return f"its certificate is not for {target.name}{names}; use a name that it has, or {_INSECURE}"
    if code in (_EXPIRED, _NOT_YET) and shown is not None:
        if code == _EXPIRED:
            return f"its certificate expired on {shown.ends[:10]}, {-shown.days_left:.1f} days ago; renew it, or {_INSECURE}"
        begins = datetime.datetime.fromisoformat(shown.ends) - datetime.timedelta(
            days=shown.lasts_days
        )
        return f"its certificate is not valid before {begins:%F %R} UTC by this host's clock; check both clocks, or {_INSECURE}"
    if code == _SHORT_KEY:
        return f"its key is too short ({'unknown' if shown is None else shown.key}); issue one with a longer key, or {_INSECURE}"
    if (
        code in _UNKNOWN_AUTHORITY
        and shown is not None
        and shown.sent == 1
        and shown.issuer != shown.subject
    ):
        lacks = "is not known here" if authority is None else f"is not in --ca {authority}"
        missing = f"its certificate is signed by {shown.issuer}, which the server does not send and which {lacks}"
        whole = "if that is an intermediate authority, have the server send its certificate too (the whole chain)"
        return f"{missing}; {whole}; else name its file with --ca, or {_INSECURE}"
    if code in _UNKNOWN_AUTHORITY:
        by = (
            ""
            if shown is None
            else f" ({'itself' if shown.issuer == shown.subject else shown.top or shown.issuer})"
        )
        signer = (
            "an authority unknown here"
            if authority is None
            else f"another authority than that of --ca {authority}"
        )
        return f"its certificate is signed by {signer}{by}; name the authority's file with --ca, or {_INSECURE}"
    return f"its certificate cannot be trusted ({message}); renew it, or {_INSECURE}"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
