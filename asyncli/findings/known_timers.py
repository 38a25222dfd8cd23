"""Default timers and limits of servers and load balancers."""

from __future__ import annotations

from typing import Literal

# Default idle timeouts (s).
#: What a timer does to a connection that was idle for its time: it closes it in order, drops it
#: without a word, or resets it, at once or in answer to what is sent later.
Ends = Literal["closes", "drops", "resets"]

# Default idle timeouts (s), by what they do. Those that close are of HTTP.
_KNOWN_IDLE_S: dict[Ends, dict[int, str]] = {
    "closes": {
        5: "the keep-alive timeout of Apache, lighttpd, Node.js and uvicorn",
        60: "the idle timeout of AWS's application and classic load balancers",
        65: "nginx's packaged keepalive_timeout",
        75: "nginx's default keepalive_timeout",
        300: "Caddy's idle timeout",
    },
    # Azure's resets where that is enabled ("Load Balancer TCP Reset and Idle Timeout" of its
    # documentation).
    "drops": {
        240: "the idle timeout of Azure's load balancer",
        600: "the idle timeout of GCP's firewalls and load balancers",
    },
    "resets": {
        240: "the idle timeout of Azure's load balancer",
        350: "the idle timeout of AWS's network load balancer",
    },
}
# Those that close after an upgrade.
_KNOWN_UPGRADED_S = {
    60: (
        "the proxy_read_timeout of nginx by default, or the idle timeout of AWS's application and "
        "classic load balancers"
    ),
}
# nginx's defaults.
_DEFAULTS = {
    "keepalive_timeout": ((75, "75 s by default"), (65, "65 s in its packages")),
    "client_header_timeout": ((60, "60 s by default"),),
    "keepalive_requests": ((1000, "1,000 by default"), (100, "100 by default before 1.19.10")),
    "keepalive_time": ((3600, "1 h by default"),),
}
# Their names in the documentation of other servers, by the beginning of the server's name.
_NAMES = {
    "node": {
        "keepalive_timeout": "keepAliveTimeout",
        "client_header_timeout": "headersTimeout",
        "keepalive_requests": "maxRequestsPerSocket",
    },
    "apache": {
        "keepalive_timeout": "KeepAliveTimeout",
        "client_header_timeout": "RequestReadTimeout",
        "keepalive_requests": "MaxKeepAliveRequests",
    },
    "haproxy": {
        "keepalive_timeout": "timeout http-keep-alive",
        "client_header_timeout": "timeout http-request",
    },
    "lighttpd": {
        "keepalive_timeout": "server.max-keep-alive-idle",
        "client_header_timeout": "server.max-read-idle",
        "keepalive_requests": "server.max-keep-alive-requests",
    },
}


def known_idle(
    low: float, high: float, ends: Ends, *, upgraded: bool = False, http: bool = True
) -> str:
    """The default idle timeout between these times (s) that ``ends`` connections so, in words, or
    "". ``http``: an HTTP proxy may be on the path.
    """
    if ends == "closes" and not http:
        return ""
    timers = _KNOWN_UPGRADED_S if ends == "closes" and upgraded else _KNOWN_IDLE_S[ends]
    for seconds, name in timers.items():
        if low - 1 <= seconds <= high + 1:
            return name
    return ""


def default_of(directive: str, low: float, high: float) -> str:
    """``75 s by default`` if that is a default of nginx's ``directive``, or ""."""
    slack = 0 if directive == "keepalive_requests" else 1
    for value, words in _DEFAULTS[directive]:
        if low - slack <= value <= high + slack:
            return words
    return ""


def timer_of(directive: str, server: str = "") -> str:
    """The name of nginx's ``directive`` on ``server`` ("": nginx)."""
    if not server:
        return f"{directive} in nginx.conf"
    for beginning, names in _NAMES.items():
        if server.lower().startswith(beginning):
            return names.get(directive, "that limit")
    return "that limit"
