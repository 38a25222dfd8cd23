"""A Dask cluster: finds the hosts, spreads the plan over them, and starts an actor on each."""

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
# Errors of a connect to a port with another listener; which end closes first is chance.
_SOMETHING_LISTENS = (
    "reset", "closed", "eof occurred", "broken pipe", "not dask's", "not idle", "wrong version number", "certificate", "alert",
)  # fmt: skip


class Cluster:
    """The cluster at ``address``, for one soak: :meth:`find_hosts`, :meth:`generator`, :meth:`close`."""

    def __init__(self, address: str, security: Any = None, *, hosts: int | None = None, flags: str = "") -> None:
        self.address = address
        #: What names it on a command line.
        self.flags = flags or f"--cluster {address}"
        self._least = hosts
        self._security = security
        self._client: Any = None
        self._fleet: Placement | None = None
        #: The session's name, which actors hold their lease for.
        self._whose = f"a session of {_user()} on {host_name()} ({uuid.uuid4().hex[:6]})"
        # Which machine's memory is sampled, and whether the server is on it.
        self._server_there, self._watched = False, machine()
        self._agent = False
        self.checks: list[Check] = []

    @classmethod
    def at(
        cls, address: str, *, ca: str | None = None, cert: str | None = None, key: str | None = None, hosts: int | None = None
    ) -> Self:
        """The scheduler at ``tcp://host:port``, or ``tls://host:port`` with PEM files. Raises :class:`PlanError` or HostError.

        ``hosts``: waits up to a minute for so many. Without files ``tls://`` takes Dask's configuration
        (``distributed.comm.tls``).
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
        """The cluster of a notebook's ``Client``, ``LocalCluster`` or the like, or of an address. Raises :class:`PlanError`.

        It makes its own connection; the client stays its owner's.
        """
        if isinstance(client, str):
            return cls.at(client)
        if isinstance(client, cls):
            return client
        address = getattr(getattr(client, "scheduler", None), "address", None) or getattr(client, "scheduler_address", None)
        if not isinstance(address, str) or not address:
            raise PlanError(f"cluster: {client!r} is no Dask client with a scheduler; give one, or its address: tcp://host:8786")
        return cls(address, getattr(client, "security", None))

    async def find_hosts(self, plan: Plan, waits: Callable[[str], None]) -> tuple[Limits, Spread]:
        """Find the hosts and spread ``plan`` over them: this host's limits, and the fleet's spread (``local``: the server is
        here).

        ``waits`` is called with what it waits for, when that changes. Sets ``checks`` and :attr:`findings`. Raises
        :class:`ClusterError`, or PreflightError where the hosts cannot hold the plan.
        """
        if not plan.has_ports:
            raise PlanError(f"--connect-to and --cluster: {plan.connect_to} is a socket of one host; leave one out")
        if self._client is None:
            await self._connect()
        members = await self._gather(plan, waits)
        fleet = self._fleet = place(plan, members)
        self.checks = fleet.checks
        limits = read_limits()
        with contextlib.suppress(AsyncliError):
            # A name that does not resolve here is not this host.
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
        """Disconnect; the actors end by themselves."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()

    # -- what Dask is asked

    async def _connect(self) -> None:
        try:
            # Awaited apart: a client that fails to connect must be closed too.
            self._client = Client(
                self.address, security=self._security, asynchronous=True, timeout=_CONNECT_S, set_as_default=False, name="asyncli"
            )
            async with asyncio.timeout(_CONNECT_S + 3.0):
                await self._client
        except (OSError, RuntimeError, ValueError, TypeError, MemoryError) as error:
            # HTTP read as a length of Dask's exceeds any memory.
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
        """Each worker's probe of its host, or the error. Each is asked alone: one may be cut off."""
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
        # A session holds the whole host.
        taken = known | {one.place for one in seen.values() if one.held_by}
        usable = {address: one for address, one in seen.items() if one.place not in taken and not one.why_not}
        return choose(usable, plan)

    async def _start_actor(self, member: Member) -> _Actor:
        from asyncli.cluster.actor import HostActor

        key = f"asyncli-{uuid.uuid4().hex}"
        # A notebook's client may be the current one, which results bind to.
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
    """Silence Dask's logs: its errors are reported in one line."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Only asyncli's own version must match.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
