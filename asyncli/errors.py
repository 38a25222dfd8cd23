"""asyncli's errors: what failed, one line with the remedy, and the exit status.

A dropped connection is an event, never an error. A traceback is a bug of ours.
"""

from __future__ import annotations

from typing import ClassVar

from asyncli.exit_status import INVALID, REFUSED


class AsyncliError(Exception):
    """Base of all errors meant for the user. ``str(error)`` is one line: what, where, how to mend it."""

    exit_status: ClassVar[int] = REFUSED


class PlanError(AsyncliError):
    """The plan (flags, TOML or notebook) asks for something that cannot be."""


class HostError(AsyncliError):
    """This host cannot do what the plan asks: descriptors, ports, memory, permissions."""


class PreflightError(HostError):
    """The preflight found that the plan cannot succeed here; ``--force`` goes on all the same."""


class StoreError(AsyncliError):
    """The run file cannot be read or written, or is not one of ours."""


class NotBegunError(StoreError):
    """There is no run in the file yet, or no file: a new run may still create it."""


class PeerError(AsyncliError):
    """The server, its status page or its agent failed."""


class UntrustedPeerError(PeerError):
    """TLS with it failed: nothing is known of what it would have said."""


class HeldError(AsyncliError):
    """Another session holds what is asked for: an agent, or a client host."""


class ClusterError(AsyncliError):
    """The Dask cluster is missing, or cannot do what is asked."""


class EngineError(AsyncliError):
    """A process of ours died or sent nonsense: a bug of asyncli, or a kill."""

    exit_status: ClassVar[int] = INVALID
