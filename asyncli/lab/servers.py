"""The lab servers by name. To add one: a class, and its line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asyncli.model.errors import PlanError
from asyncli.model.installed import how_to_install, is_installed

if TYPE_CHECKING:
    from asyncli.lab.base import LabServer


class Known(NamedTuple):
    """``class_path``: module and class, imported on use. ``description``: for ``--help``."""

    class_path: str
    description: str


NAMES: dict[str, Known] = {
    "nginx": Known("nginx.LabNginx", "HTTP, HTTP/2"),
    "nginx-proxy": Known(
        "proxies.LabNginxProxy", "an nginx before two others: HTTP, HTTP/2, WebSocket"
    ),
    "nchan": Known("nginx.LabNchan", "an nginx that holds WebSockets and event streams"),
    "apache-prefork": Known("apache.LabApachePrefork", "a process for each connection: HTTP"),
    "apache-event": Known("apache.LabApacheEvent", "HTTP, HTTP/2"),
    "haproxy": Known("packaged_servers.LabHaproxy", "HTTP, HTTP/2"),
    "haproxy-proxy": Known(
        "proxies.LabHaproxyProxy", "a HAProxy before two nginx: HTTP, HTTP/2, WebSocket"
    ),
    "caddy": Known("packaged_servers.LabCaddy", "HTTP, HTTP/2"),
    "envoy": Known("packaged_servers.LabEnvoy", "HTTP, HTTP/2"),
    "lighttpd": Known("packaged_servers.LabLighttpd", "HTTP, HTTP/2"),
    "varnish": Known("packaged_servers.LabVarnish", "HTTP, HTTP/2"),
    "websockets": Known("libraries.LabWebsockets", "Python's websockets on asyncio: WebSocket"),
    "aiohttp": Known("libraries.LabAiohttp", "Python's aiohttp: WebSocket, HTTP"),
    "uvicorn": Known(
        "libraries.LabUvicorn", "Python's uvicorn with an app of ASGI: WebSocket, HTTP"
    ),
    "node-http": Known("libraries.LabNodeHttp", "Node's http: HTTP"),
    "node-ws": Known("libraries.LabNodeWs", "Node's ws: WebSocket, HTTP"),
    "go-http": Known("libraries.LabGoHttp", "Go's net/http: HTTP"),
    "gorilla": Known("libraries.LabGorilla", "Go's gorilla/websocket: WebSocket, HTTP"),
    "gobwas": Known("libraries.LabGobwas", "Go's gobwas/ws on an epoll set: WebSocket"),
    "jvm": Known("libraries.LabJvm", "Java's Netty: HTTP"),
    "mosquitto": Known("packaged_servers.LabMosquitto", "MQTT"),
    "nats": Known("packaged_servers.LabNats", "NATS, as raw TCP"),
    "redis": Known("packaged_servers.LabRedis", "raw TCP"),
    "memcached": Known("packaged_servers.LabMemcached", "raw TCP"),
    "builtin": Known("builtin.LabBuiltin", "asyncli's own: HTTP"),
    "iterative": Known("models.LabModel", "a textbook model: one client at a time"),
    "fork": Known("models.LabModel", "a textbook model: a process per client"),
    "prefork": Known("models.LabModel", "a textbook model: a pool of processes"),
    "thread": Known("models.LabModel", "a textbook model: a thread per client"),
    "thread-pool": Known("models.LabModel", "a textbook model: a pool of threads"),
    "thread-queue": Known(
        "models.LabModel", "a textbook model: a pool of threads, fed through a queue"
    ),
    "asyncio": Known("models.LabModel", "a textbook model: asyncio"),
}


class _Ability(NamedTuple):
    """What an option asks of a server, which not every one can."""

    #: With "does not" before it.
    verb: str
    has: Callable[[type[LabServer]], bool]


_ABILITIES = {
    "tls": _Ability("speak TLS", lambda kind: kind.speaks_tls),
    "http2": _Ability("speak HTTP/2", lambda kind: kind.speaks_http2),
    "proxy_protocol": _Ability("speak the PROXY protocol", lambda kind: kind.speaks_proxy_protocol),
    "deflate": _Ability("speak permessage-deflate", lambda kind: kind.speaks_deflate),
    "heap_bytes": _Ability("limit its heap", lambda kind: kind.limits_heap),
    "pad_bytes": _Ability("pad its connections", lambda kind: kind.pads_connections),
}


def choose(name: str | None = None, **options: Any) -> LabServer:
    """The lab server called ``name`` (None: an nginx with stub_status, else the built-in server),
    not yet started.

    ``options``: see :class:`LabServer` and the server's class. Raises :class:`PlanError` for an
    unknown name or an option that the server does not support.
    """
    if name is None:
        from asyncli.lab.executables import find_nginx

        binary = find_nginx()
        if binary is not None and binary.stub_status:
            return choose("nginx", binary=binary, **options)
        name = "builtin"
    kind = kind_of(name)
    for option, ability in _ABILITIES.items():
        if options.get(option) and not ability.has(kind):
            others = ", ".join(other for other in _names_here() if ability.has(kind_of(other)))
            raise PlanError(f"the lab {name} does not {ability.verb}; those that do are {others}")
    if NAMES[name].class_path.startswith("models."):
        options["model"] = name
    return kind(**options)


def kind_of(name: str) -> type[LabServer]:
    """The class of the lab server called ``name``. Raises :class:`~asyncli.model.errors.PlanError`
    for an unknown name, and for one that ``asyncli-light`` leaves out.
    """
    if name not in NAMES:
        *others, last = NAMES
        raise PlanError(f"unknown lab server {name!r}; write {', '.join(others)} or {last}")
    module, class_name = _place_of(name)
    if not is_installed(module):
        raise PlanError(f"the lab {name} is not a part of this installation; {how_to_install()}")
    return cast("type[LabServer]", getattr(importlib.import_module(module), class_name))


def _names_here() -> list[str]:
    """The names of those that are a part of this installation."""
    return [name for name in NAMES if is_installed(_place_of(name)[0])]


def _place_of(name: str) -> tuple[str, str]:
    """The module and the class of a lab server."""
    module, _, class_name = NAMES[name].class_path.partition(".")
    return f"asyncli.lab.{module}", class_name
