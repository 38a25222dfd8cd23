"""Local servers to aim at: a private nginx, or the built-in asyncio server where there is none."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from asyncli.errors import PlanError

#: What :func:`choose` knows.
NAMES = ("nginx", "builtin")


class LabServer(Protocol):
    """What every lab server offers. ``pid`` is its main process; the processes it started are the children of that."""

    async def start(self) -> None:
        """Start it and return when it answers; :class:`~asyncli.errors.HostError` where it cannot."""

    async def stop(self) -> None:
        """End it and everything it left; safe to repeat."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def url(self) -> str:
        """The URL to aim at."""

    @property
    def status_url(self) -> str:
        """The URL of its stub_status page."""

    @property
    def pid(self) -> int:
        """Its main process."""

    @property
    def label(self) -> str:
        """What to call it wherever its numbers appear: ``nginx/1.22.1`` or ``built-in server``."""

    @property
    def version(self) -> str:
        """Its version without its name."""

    @property
    def workers(self) -> int:
        """Its worker processes; 0 before the start."""

    @property
    def error_log(self) -> Path | None:
        """Its error log while it runs; None where it keeps none."""


def choose(name: str | None = None, **options: Any) -> LabServer:
    """The lab server called ``name``; for None an nginx if this host has one with stub_status, else the built-in one.

    ``options`` go to it: ``connections``, ``port``, ``keepalive_s`` (seconds), ``address``, ``workers``. It is not
    started yet. Raises :class:`~asyncli.errors.PlanError` for an unknown name.
    """
    if name not in (None, *NAMES):
        raise PlanError(f"unknown lab server {name!r}; write {' or '.join(NAMES)}")
    from asyncli.lab.binary import find_nginx

    if name == "nginx":
        from asyncli.lab.nginx import LabNginx

        return LabNginx(**options)
    binary = find_nginx() if name is None else None
    if binary is not None and binary.stub_status:
        from asyncli.lab.nginx import LabNginx

        return LabNginx(binary=binary, **options)
    from asyncli.lab.builtin import LabBuiltin

    return LabBuiltin(**options)
