"""A Dask cluster as the session uses it: find the hosts, lay the plan over them, and put an actor on each."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import shlex
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from asyncli import __version__
from asyncli.certificates import identify, trusting
from asyncli.cluster.generator import ClusterGenerator
from asyncli.cluster.host_probe import HostProbe, machine, probe_client_host, read_probe
from asyncli.cluster.placement import Member, Placement, choose, ends_there, open_cluster, place, said_of
from asyncli.engine.shard import Shard
from asyncli.engine.spread import Spread
from asyncli.environment import host_name, probe_host
from asyncli.errors import AsyncliError, ClusterError, HostError, PlanError
from asyncli.findings.generator import cluster_memory
from asyncli.metrics import CLIENT, TCP
from asyncli.plan import Plan, shown_plan
from asyncli.preflight.limits import Limits, read_limits
from asyncli.records import Check, Finding
from asyncli.units import format_many

try:
    import distributed
    from distributed import Client, Security
    from distributed.versions import VersionMismatchWarning
except ImportError as missing:  # the extra "dask" is not installed
    _error = f"a cluster needs Dask's distributed, which cannot be loaded here ({missing}); pip install 'asyncli[dask]'"
    raise HostError(_error) from None

# A scheduler answers in milliseconds; one behind a slow link in a second.
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_CLOSE_S = 5.0
# Workers that are started by one loop over ssh are there within seconds.
_COME_S = 60.0
# What a connect comes to where somebody listens: which of the two ends hangs up first is chance.
_SOMETHING_LISTENS = (
    "reset", "closed", "eof occurred", "broken pipe", "not dask's", "not idle", "wrong version number", "certificate", "alert",
)  # fmt: skip


class Cluster:
    """The cluster at ``address``, for one soak: :meth:`muster`, :meth:`generator`, :meth:`close`."""

    def __init__(self, address: str, security: Any = None, *, hosts: int | None = None, flags: str = "") -> None:
        self.address = address
        #: What names it on a command line.
        self.flags = flags or f"--cluster {address}"
        self._least = hosts
        self._security = security
        self._client: Any = None
        self._fleet: Placement | None = None
        #: The session's own words for itself, by which an actor knows whose it is.
        self._whose = f"a session of {_user()} on {host_name()} ({uuid.uuid4().hex[:6]})"
        # Of each connection's two ends, what the kernel has whose memory is sampled.
        self._server_there, self._watched = False, machine()
        self._agent = False
        self.checks: list[Check] = []

    @classmethod
    def at(
        cls, address: str, *, ca: str | None = None, cert: str | None = None, key: str | None = None, hosts: int | None = None
    ) -> Self:
        """The scheduler at ``tcp://host:port``, or ``tls://host:port`` with files of PEM. Raises :class:`PlanError` or HostError.

        ``hosts``: that many are waited for, a minute at most, and fewer refused. Without files a ``tls://`` takes what Dask's own
        configuration says (``distributed.comm.tls``).
        """
        try:
            parts = urlsplit(address)
            wrong = parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port
        except ValueError:
            wrong = True
        if wrong:
            raise PlanError(f"--cluster: {address!r} is no address of a Dask scheduler; write tcp://host:8786 or tls://host:8786")
        files = {"--cluster-ca": ca, "--cluster-cert": cert, "--cluster-key": key}
        given = {name: file for name, file in files.items() if file is not None}
        if parts.scheme == "tcp":
            if given:
                raise PlanError(f"{', '.join(given)}: of no use with tcp://, which is not encrypted; write tls:// in --cluster")
            _quiet()
            return cls(address, hosts=hosts)
        missing = ", ".join(name for name in files if name not in given)
        if given and missing:
            raise PlanError(f"--cluster: tls:// takes all three of {', '.join(files)}; {missing} is missing")
        if ca and cert and key:
            identify(trusting("--cluster-ca", ca), ("--cluster-cert", "--cluster-key"), cert, key)
        settings = {"tls_ca_file": ca, "tls_client_cert": cert, "tls_client_key": key} if given else {}
        security = Security(require_encryption=True, **settings)
        if not security.tls_ca_file:
            raise PlanError(f"--cluster: tls:// needs certificates; give {', '.join(files)}, or set distributed.comm.tls of Dask")
        _quiet()
        flags = " ".join([f"--cluster {address}", *(f"{name} {shlex.quote(file)}" for name, file in given.items())])
        return cls(address, security, hosts=hosts, flags=flags)

    @classmethod
    def of(cls, client: Any) -> Self:
        """The cluster of a notebook's ``Client`` (or a ``LocalCluster`` and its like), or an address. Raises :class:`PlanError`.

        Its connection is our own, in our loop: the client stays its owner's.
        """
        if isinstance(client, str):
            return cls.at(client)
        if isinstance(client, cls):
            return client
        address = getattr(getattr(client, "scheduler", None), "address", None) or getattr(client, "scheduler_address", None)
        if not isinstance(address, str) or not address:
            raise PlanError(f"cluster: {client!r} is no Dask client with a scheduler; give one, or its address: tcp://host:8786")
        return cls(address, getattr(client, "security", None))

    async def muster(self, plan: Plan, waits: Callable[[str], None]) -> tuple[Limits, Spread]:
        """Find the hosts and lay ``plan`` over them: this host's limits, and the fleet as one spread (``local``: to this host).

        ``waits`` hears what it waits for, and again when that changes.

        ``checks`` and :attr:`findings` are then of the hosts. Raises :class:`ClusterError`, or PreflightError where they cannot
        hold it.
        """
        if self._client is None:
            await self._connect()
        members = await self._gather(plan, waits)
        fleet = self._fleet = place(plan, members)
        self.checks = fleet.checks
        limits = read_limits()
        with contextlib.suppress(AsyncliError):
            # Where its name says nothing here, it is not here.
            limits, here = await probe_host(msgspec.structs.replace(plan, sources=()))
            self._server_there = here.local
        return limits, msgspec.structs.replace(fleet.spread, local=self._server_there)

    def watched_by_agent(self, boot: str | None) -> None:
        """An agent samples the server; ``boot`` is the boot id of its machine, None where unknown."""
        self._agent, self._server_there, self._watched = True, True, boot or "elsewhere"

    def _opened_on(self, boot: str) -> int:
        """How many connections the machine with this boot id opens."""
        assert self._fleet is not None
        return sum(self._fleet.share(member.workers) for member in self._fleet.members if member.seen.boot == boot)

    @property
    def _ends(self) -> int | None:
        assert self._fleet is not None
        return ends_there(self._server_there, self._opened_on(self._watched), self._fleet.plan.connections)

    @property
    def findings(self) -> list[Finding]:
        assert self._fleet is not None
        left_out = None if self._ends else cluster_memory(self._ends, self._agent)
        return [one for one in (said_of(self._fleet), open_cluster(self.address), left_out) if one is not None]

    @property
    def leave_out(self) -> tuple[str, ...]:
        """Prefixes of the metrics that say nothing about this run."""
        assert self._fleet is not None
        names = ("generator.",) if self._ends else ("generator.", "kernel.", "host.", *((TCP,) if self._ends == 0 else ()))
        all_here = self._opened_on(machine()) == self._fleet.plan.connections
        # With an agent's samples there are this host's, which is no client.
        return (*names, CLIENT) if self._agent and not all_here else names

    def environment(self, hosts: list[dict[str, Any]]) -> dict[str, Any]:
        """What the run file records; ``hosts``: :meth:`ClusterGenerator.document`."""
        about = {
            "scheduler": self.address, "distributed": distributed.__version__, "hosts": hosts,
            "server_here": self._server_there and not self._agent,
        }  # fmt: skip
        return {"cluster": about, "local": self._ends == 2}

    def generator(self, shard: Shard) -> ClusterGenerator:
        assert self._fleet is not None
        return ClusterGenerator(self._fleet, shard, self._start_actor, self._find)

    async def close(self) -> None:
        """Leave the cluster; our actors there end by themselves."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()

    # -- what Dask is asked

    async def _connect(self) -> None:
        try:
            # Not awaited in the same call: a client that does not connect in time must be closed all the same.
            self._client = Client(
                self.address, security=self._security, asynchronous=True, timeout=_CONNECT_S, set_as_default=False, name="asyncli"
            )
            async with asyncio.timeout(_CONNECT_S + 3.0):
                await self._client
        except (OSError, RuntimeError, ValueError, TypeError, MemoryError) as error:
            # An answer of HTTP, read as a length of Dask's, is more than any memory.
            reason = "an answer that is not Dask's" if isinstance(error, MemoryError) else _reason(error)
            raise ClusterError(unanswered(self.address, reason)) from None

    async def _gather(self, plan: Plan, waits: Callable[[str], None]) -> list[Member]:
        """The hosts, once they are as many as were asked for."""
        least, until, told = self._least or 0, time.monotonic() + _COME_S, ""
        while True:
            last = not least or time.monotonic() >= until
            try:
                members = choose(await self._see(plan, await self._addresses()), plan)
            except ClusterError as error:
                if last:
                    raise
                why = str(error).partition(";")[0]
            else:
                if len(members) >= least:
                    return members
                there = ", ".join(member.name for member in members)
                if last:
                    raise ClusterError(
                        f"--cluster-hosts: {len(members)} of {least} hosts are there after {_COME_S:.0f} s ({there}); "
                        "see the Dask workers' logs on the others, or ask for fewer"
                    )
                why = f"{len(members)} of them there ({there})"
            if why != told:
                told = why
                waits(f"waits, for {_COME_S:.0f} s at most, for {format_many(least, 'client host')}: {why}")
            await asyncio.sleep(1.0)

    async def _addresses(self) -> list[str]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = sorted(await self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise ClusterError(
                f"the scheduler at {self.address} does not list its workers ({_reason(error)}); see its log"
            ) from None
        if not found:
            raise ClusterError(
                f"the scheduler at {self.address} has no worker; start one on each client host: dask worker {self.address}"
            )
        return found

    async def _see(self, plan: Plan, addresses: list[str]) -> dict[str, HostProbe | str]:
        """What each worker sees of its host, or why it does not. Each is asked by itself: one may be cut off."""
        document = shown_plan(plan)
        said = await asyncio.gather(*(self._probe_from(address, document) for address in addresses))
        return dict(zip(addresses, said, strict=True))

    async def _probe_from(self, address: str, document: Mapping[str, Any]) -> HostProbe | str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                said = (await self._client.run(probe_client_host, document, workers=[address], on_error="return"))[address]
        except (OSError, RuntimeError) as error:
            said = error
        if isinstance(said, bytes):
            return read_probe(said)
        reason = _reason(said)
        if "No module named 'asyncli" in reason:
            return f"has no asyncli, or an older one; install asyncli[dask] {__version__} there, in the Python that runs it"
        return f"cannot be asked ({reason}); its log says more"

    async def _find(self, known: set[str]) -> list[Member]:
        """Hosts other than those at the places ``known``."""
        assert self._fleet is not None
        plan = self._fleet.plan
        if self._client is None or self._client.status != "running":
            # It has lost its scheduler.
            await self.close()
            await self._connect()
        every = await self._see(plan, await self._addresses())
        seen = {address: one for address, one in every.items() if isinstance(one, HostProbe)}
        # A session that holds one of a host's workers holds the host.
        taken = known | {one.place for one in seen.values() if one.held_by}
        usable = {address: one for address, one in seen.items() if one.place not in taken and not one.why_not}
        return choose(usable, plan)

    async def _start_actor(self, member: Member) -> _Actor:
        from asyncli.cluster.actor import HostActor

        key = f"asyncli-{uuid.uuid4().hex}"
        # Another client may be the current one, a notebook's; what comes back binds itself to the current one.
        with self._client.as_current():
            future = self._client.submit(HostActor, self._whose, actor=True, workers=[member.address], key=key, pure=False)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return _Actor(future, await future)
            except BaseException as error:
                future.release()
                if not isinstance(error, Exception):
                    raise
                why = f"nothing within {_ANSWER_S:.0f} s" if isinstance(error, TimeoutError) else _reason(error)
                raise ClusterError(f"no actor can be started on {member.name} ({member.address}): {why}") from None


class _Actor:
    """A :class:`~asyncli.cluster.remote_host.Handle`."""

    def __init__(self, future: Any, proxy: Any) -> None:
        self._future, self._proxy = future, proxy

    def lost(self) -> str:
        status = self._future.status
        return "" if status in ("finished", "pending") else "has lost its Dask worker"

    async def call(self, method: str, *arguments: object) -> Any:
        return await getattr(self._proxy, method)(*arguments)

    def release(self) -> None:
        with contextlib.suppress(Exception):
            self._future.release()


def unanswered(address: str, reason: str) -> str:
    """The message for a scheduler that does not answer, by the error of the connect."""
    if not any(words in reason.lower() for words in _SOMETHING_LISTENS):
        return f"no Dask scheduler answers at {address} ({reason}); start one: dask scheduler"
    if address.startswith("tls"):
        what = "refuses our certificate, shows one that is not to be trusted, or speaks no TLS"
        mend = "give certificates of the authority that it was started with, or write tcp://"
    else:
        what, mend = "does not speak to us as a Dask scheduler does", "does it speak TLS? then write tls://"
    return f"something listens at {address}, but {what} ({reason}); {mend}"


def _reason(error: BaseException) -> str:
    """The root cause of one of Dask's errors, in one line."""
    words = ""
    seen: BaseException | None = error
    while seen is not None:
        words = " ".join(str(seen).split()) or words
        seen = seen.__cause__ or seen.__context__
    return (words or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__))[:200]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "nobody"


def _quiet() -> None:
    """Silence the logs of Dask: on a command line we report its errors ourselves, in one line."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Its table of versions that differ: of asyncli's we say so, and of the others little matters to us.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
