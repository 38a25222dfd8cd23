"""Every error asyncli raises on purpose: who is guilty, one line that says how to mend it, and the exit status.

A dropped connection is an event, never an error. Anything that reaches the user as a traceback is a bug of ours.
"""

from __future__ import annotations

from typing import ClassVar

from asyncli.exit_status import INVALID, REFUSED


class AsyncliError(Exception):
    """Base of all errors meant for the user. ``str(error)`` is one line: what, where, how to mend it."""

    guilty: ClassVar[str] = "asyncli"
    exit_status: ClassVar[int] = REFUSED


class PlanError(AsyncliError):
    """The plan (flags, TOML or notebook) asks for something that cannot be."""

    guilty: ClassVar[str] = "plan"


class HostError(AsyncliError):
    """This host cannot do what the plan asks: descriptors, ports, memory, permissions."""

    guilty: ClassVar[str] = "this host"


class PreflightError(HostError):
    """The preflight found that the plan cannot succeed here; ``--force`` goes on all the same."""


class StoreError(AsyncliError):
    """The run file cannot be read or written, or is not one of ours."""

    guilty: ClassVar[str] = "run file"


class NotBegunError(StoreError):
    """There is no run in the file yet, or no file: a run that was just started may still create it."""


class PeerError(AsyncliError):
    """The server, or its status page, is not what the plan says it is."""

    guilty: ClassVar[str] = "server"


class HeldError(AsyncliError):
    """Another session holds what is asked for: an agent, or a client host."""


class ClusterError(AsyncliError):
    """The Dask cluster that was named is not there, or cannot do what is asked of it."""

    guilty: ClassVar[str] = "cluster"


class EngineError(AsyncliError):
    """A process of ours died or spoke nonsense: a bug of asyncli, or a kill from outside."""

    guilty: ClassVar[str] = "asyncli"
    exit_status: ClassVar[int] = INVALID
