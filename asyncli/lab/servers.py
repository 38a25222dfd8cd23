"""Local servers to aim at, by name: nginx, Apache, HAProxy, mosquitto, and the built-in asyncio server where there is none."""

from __future__ import annotations

import importlib
from typing import Any, cast

from asyncli.errors import PlanError
from asyncli.lab.base import LabServer, url_of

__all__ = ["NAMES", "LabServer", "choose", "kind_of", "url_of"]

#: name -> module and class, imported on use.
NAMES: dict[str, str] = {
    "nginx": "nginx.LabNginx", "nginx-proxy": "proxy.LabNginxProxy", "apache-prefork": "apache.LabApachePrefork",
    "apache-event": "apache.LabApacheEvent", "haproxy": "haproxy.LabHaproxy", "builtin": "builtin.LabBuiltin",
    "nchan": "nchan.LabNchan", "mosquitto": "mosquitto.LabMosquitto", "redis": "stores.LabRedis",
    "memcached": "stores.LabMemcached",
    **dict.fromkeys(("iterative", "fork", "prefork", "thread", "thread-pool", "thread-queue", "asyncio"), "models.LabModel"),
}  # fmt: skip


def choose(name: str | None = None, **options: Any) -> LabServer:
    """The lab server called ``name``; None: an nginx with stub_status, else the built-in one. It is not started.

    ``options``: see :class:`LabServer` and the server's class. Raises :class:`~asyncli.errors.PlanError` for an unknown name.
    """
    if name is None:
        from asyncli.lab.executables import find_nginx

        binary = find_nginx()
        if binary is not None and binary.stub_status:
            return choose("nginx", binary=binary, **options)
        name = "builtin"
    if NAMES.get(name, "").startswith("models."):
        options["model"] = name
    return kind_of(name)(**options)


def kind_of(name: str) -> type[LabServer]:
    """The class of the lab server called ``name``. Raises :class:`~asyncli.errors.PlanError` for an unknown name."""
    if name not in NAMES:
        *others, last = NAMES
        raise PlanError(f"unknown lab server {name!r}; write {', '.join(others)} or {last}")
    module, _, made = NAMES[name].partition(".")
    return cast(type[LabServer], getattr(importlib.import_module(f"asyncli.lab.{module}"), made))
