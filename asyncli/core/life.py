"""The life cycle of a connection, as one table of states and events. The hot path (idle -> awaiting
-> idle) writes states directly; every end of a connection calls :func:`cause`.
"""

from __future__ import annotations

import errno

# States. UNOPENED: its batch of the ramp is not due yet. HANDSHAKE: of its protocol, for example an
# upgrade. CLOSING: at the end of the drain the goodbye is sent. DEAD: closed, and not reopened.
# AWAY: closed by us, or by the server where clients come back by a policy; in a queue of its own.
# STALLED: by an event it reads nothing, or has not yet read all that waited meanwhile.
UNOPENED, CONNECTING, IDLE, AWAITING, BACKOFF, DEAD, HANDSHAKE, CLOSING, AWAY, STALLED = range(10)

# Events that end a connection: what the peer did, what the kernel reported, or a deadline of ours.
EOF = "end of stream"
RESET = "reset by peer"
REFUSED = "connection refused"
UNREACHABLE = "unreachable"
NO_PORTS = "out of ports"
NO_DESCRIPTORS = "out of descriptors"
DEADLINE = "deadline passed"
ANNOUNCED = "Connection: close"
MALFORMED = "not a response"
TLS_FAILED = "TLS failed"
TLS_DEADLINE = "deadline of TLS's handshake passed"
OTHER_ERROR = "another error"
#: After these the peer may not answer our FIN, and the port would stay in use: close by RST.
ABORTS = (DEADLINE, TLS_DEADLINE, MALFORMED)

#: By these the server ends a connection in order: what it does in a reload, or a restart.
BY_SERVER = (EOF, RESET, ANNOUNCED)

#: (state, event) -> cause. In CONNECTING and HANDSHAKE the cause is a failure (never established),
#: later a death. Any other pair is "other": OTHER_ERROR stands for kernel errors without a name
#: here.
CAUSES: dict[tuple[int, str], str] = {
    (CONNECTING, REFUSED): "refused",
    # Granted by the kernel of the other end, and then reset: something listened there. A refusal of
    # the kernel is REFUSED.
    (CONNECTING, RESET): "reset",
    (CONNECTING, EOF): "refused",
    (CONNECTING, UNREACHABLE): "unreachable",
    (CONNECTING, NO_PORTS): "no_ports",
    (CONNECTING, NO_DESCRIPTORS): "no_descriptors",
    (CONNECTING, DEADLINE): "connect_timeout",
    (CONNECTING, TLS_DEADLINE): "tls_timeout",
    (CONNECTING, TLS_FAILED): "tls_failed",
    (HANDSHAKE, EOF): "handshake_refused",
    (HANDSHAKE, RESET): "handshake_refused",
    (HANDSHAKE, ANNOUNCED): "handshake_refused",
    (HANDSHAKE, MALFORMED): "handshake_refused",
    (HANDSHAKE, DEADLINE): "handshake_timeout",
    (HANDSHAKE, UNREACHABLE): "handshake_timeout",
    (HANDSHAKE, TLS_FAILED): "tls_failed",
    (IDLE, EOF): "closed_idle",
    (IDLE, RESET): "reset",
    (IDLE, ANNOUNCED): "closed_announced",
    (IDLE, MALFORMED): "protocol_error",
    (IDLE, UNREACHABLE): "heartbeat_timeout",
    (IDLE, DEADLINE): "heartbeat_timeout",
    (IDLE, TLS_FAILED): "tls_failed",
    (AWAITING, EOF): "closed_awaiting",
    (AWAITING, RESET): "reset",
    (AWAITING, ANNOUNCED): "closed_announced",
    (AWAITING, DEADLINE): "heartbeat_timeout",
    (AWAITING, UNREACHABLE): "heartbeat_timeout",
    (AWAITING, MALFORMED): "protocol_error",
    (AWAITING, TLS_FAILED): "tls_failed",
}

#: Causes of attempts that never established, and of established connections that ended: the
#: contract's names.
FAILURES = (
    "refused",
    "reset",
    "unreachable",
    "connect_timeout",
    "tls_timeout",
    "tls_failed",
    "handshake_refused",
    "handshake_timeout",
    "no_ports",
    "no_descriptors",
    "other",
)
DEATHS = (
    "reset",
    "closed_idle",
    "closed_awaiting",
    "closed_announced",
    "heartbeat_timeout",
    "protocol_error",
    "tls_failed",
    "generator_lost",
    "other",
)

_EVENT_OF_ERRNO = {
    errno.ECONNREFUSED: REFUSED,
    # Unix sockets: the path is gone, or the server that a connect waited for.
    errno.ENOENT: REFUSED,
    errno.ENOTCONN: REFUSED,
    errno.ECONNRESET: RESET,
    # The peer's FIN came before our write, and its RST after it: the peer had closed.
    errno.EPIPE: EOF,
    errno.EADDRNOTAVAIL: NO_PORTS,
    errno.EADDRINUSE: NO_PORTS,
    errno.EMFILE: NO_DESCRIPTORS,
    errno.ENFILE: NO_DESCRIPTORS,
    errno.ENOSPC: NO_DESCRIPTORS,  # epoll's max_user_watches
    errno.ENETUNREACH: UNREACHABLE,
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETDOWN: UNREACHABLE,
    errno.EHOSTDOWN: UNREACHABLE,
    errno.EACCES: UNREACHABLE,
    errno.EPERM: UNREACHABLE,
    # The kernel gave up retransmitting: while connecting an early deadline, later a silent drop.
    errno.ETIMEDOUT: DEADLINE,
    errno.EPROTO: TLS_FAILED,
}


def event_of(error_number: int | None) -> str:
    """The event that an errno means for a connection."""
    return _EVENT_OF_ERRNO.get(error_number or 0, OTHER_ERROR)


def cause(state: int, event: str) -> str:
    """The cause when a connection ends in ``state`` by ``event``."""
    return CAUSES.get((state, event), "other")
