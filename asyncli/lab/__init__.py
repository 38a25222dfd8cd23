"""Local servers to aim at, by name: nginx, Apache, HAProxy, and the built-in asyncio server where there is none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from asyncli.errors import PlanError
from asyncli.lab.program import LabServer

__all__ = ["NAMES", "LabServer", "choose"]

Loader = Callable[..., LabServer]


def _lazily(module: str, name: str, **fixed: Any) -> Loader:
    """The class ``name`` of ``asyncli.lab.module``, imported when one is made; ``fixed`` are arguments that it always gets."""

    def make(**options: Any) -> LabServer:
        made = getattr(importlib.import_module(f"asyncli.lab.{module}"), name)(**fixed, **options)
        return cast(LabServer, made)

    return make


#: What :func:`choose` knows, and how it makes one.
NAMES: dict[str, Loader] = {
    "nginx": _lazily("nginx", "LabNginx"),
    "nginx-proxy": _lazily("proxy", "LabNginxProxy"),
    "apache-prefork": _lazily("apache", "LabApachePrefork"),
    "apache-event": _lazily("apache", "LabApacheEvent"),
    "haproxy": _lazily("haproxy", "LabHaproxy"),
    "builtin": _lazily("builtin", "LabBuiltin"),
    **{
        model: _lazily("models", "LabModel", model=model)
        for model in ("iterative", "fork", "prefork", "thread", "thread-pool", "thread-queue", "asyncio")
    },
}


def choose(name: str | None = None, **options: Any) -> LabServer:
    """The lab server called ``name``; for None an nginx if this host has one with stub_status, else the built-in one.

    ``options`` go to it: ``connections`` (without it as many as suit the server), ``port``, ``keepalive_s`` (seconds),
    ``address``, ``workers``, and what else the server's class takes. It is not started yet. Raises
    :class:`~asyncli.errors.PlanError` for an unknown name.
    """
    if name is None:
        from asyncli.lab.binary import find_nginx

        binary = find_nginx()
        if binary is not None and binary.stub_status:
            return NAMES["nginx"](binary=binary, **options)
        return NAMES["builtin"](**options)
    if name not in NAMES:
        *others, last = NAMES
        raise PlanError(f"unknown lab server {name!r}; write {', '.join(others)} or {last}")
    return NAMES[name](**options)
