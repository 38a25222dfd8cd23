"""asyncli's errors, each one line with the remedy, and an exit status.

A dropped connection is an event, not an error. A traceback is a bug of asyncli.
"""

from __future__ import annotations

from typing import ClassVar

from asyncli.model.exit_status import INVALID, REFUSED


class AsyncliError(Exception):
    """Base of all errors for the user. ``str(error)`` is one line: what is wrong, where, and the
    remedy.
    """

    exit_status: ClassVar[int] = REFUSED


class PlanError(AsyncliError):
    """The plan (flags, TOML or notebook) is invalid."""


class HostError(AsyncliError):
    """This host cannot do what the plan asks: descriptors, ports, memory, permissions."""


class PreflightError(HostError):
    """The preflight found that the plan cannot succeed here; ``--force`` overrides it."""


class StoreError(AsyncliError):
    """The run file cannot be read or written, or is not a run file. ``to_name``: what should be
    named in its place; a list of files says :attr:`what` alone.
    """

    def __init__(self, what: str, to_name: str = "") -> None:
        super().__init__(f"{what}; name {to_name}" if to_name else what)
        self.what = what


class NotBegunError(StoreError):
    """The file has no run yet, or does not exist: a new run may still create it."""


class PeerError(AsyncliError):
    """The server, its status page or its agent failed."""


class CannotCollectError(PeerError):
    """The server's runtime was not asked for a collection, or made none: ``why``, and the
    ``remedy``.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(f"{why}; {remedy}" if remedy else why)
        self.why = why
        self.remedy = remedy


class UntrustedPeerError(PeerError):
    """TLS with the peer failed, so nothing else is known about it."""


class HeldError(AsyncliError):
    """Another session uses the agent or the client host."""


class ClusterError(AsyncliError):
    """The Dask cluster is missing or unusable."""


class EngineError(AsyncliError):
    """A process of asyncli died or sent invalid data: a bug, or it was killed."""

    exit_status: ClassVar[int] = INVALID
