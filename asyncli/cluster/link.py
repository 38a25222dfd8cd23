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
from asyncli.cluster.generator import ClusterGenerator
from asyncli.cluster.host_probe import HostProbe, machine, probe_client_host, read_probe
from asyncli.cluster.placement import (
    Member,
    Placement,
    choose,
    place,
    placement_finding,
    sampled_ends,
    unencrypted,
)
from asyncli.engine.shard import Shard
from asyncli.engine.spread import Spread
from asyncli.environment import host_name, probe_host
from asyncli.findings.generator import cluster_memory
from asyncli.model.certificates import identify, trusting
from asyncli.model.errors import AsyncliError, ClusterError, HostError, PlanError
from asyncli.model.metrics import CLIENT, TCP
from asyncli.model.plan import Plan, shown_plan
from asyncli.model.records import Check, Finding
from asyncli.model.units import format_many
from asyncli.preflight.host_limits import Limits, read_limits

try:
    import distributed
    from distributed import Client, Security
    from distributed.versions import VersionMismatchWarning
except ImportError as missing:  # the extra "dask" is not installed
    _error = (
        f"a cluster needs Dask's distributed, which cannot be loaded here ({missing}); pip "
        "install 'asyncli[dask]'"
    )
    raise HostError(_error) from None

# A scheduler answers in milliseconds; one behind a slow link in a second.
_CONNECT_S = 5.0
_ANSWER_S = 30.0
_CLOSE_S = 5.0
# Workers that one loop over ssh starts are up within seconds.
_HOSTS_WAIT_S = 60.0
# Errors of a connect to a port with another listener: which end closes first is chance.
_SOMETHING_LISTENS = (
    "reset",
    "closed",
    "eof occurred",
    "broken pipe",
    "not dask's",
    "not idle",
    "wrong version number",
    "certificate",
    "alert",
)


def _scheme_of(address: str) -> str:
    """The scheme of a scheduler's address. Raises :class:`PlanError` for anything else."""
    try:
        parts = urlsplit(address)
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            return parts.scheme
    except ValueError:
        pass
    raise PlanError(
        f"--cluster: {address!r} is no Dask scheduler's address; "
        "write tcp://host:8786 or tls://host:8786"
    )


class Cluster:
    """The cluster at ``address``, for one soak: :meth:`find_hosts`, :meth:`generator`,
    :meth:`close`.
    """

    def __init__(
        self, address: str, security: Any = None, *, hosts: int | None = None, flags: str = ""
    ) -> None:
        self.address = address
        #: The flags that name it on a command line.
        self.flags = flags or f"--cluster {address}"
        self._least = hosts
        self._security = security
        self._client: Any = None
        self._fleet: Placement | None = None
        #: The session that the actors hold their hosts for.
        self._session_name = (
            f"a session of {_user_name()} on {host_name()} ({uuid.uuid4().hex[:6]})"
        )
        # Whether the server is on the machine whose memory is sampled, and that machine.
        self._server_there = False
        self._watched = machine()
        self._agent = False
        self.checks: list[Check] = []

    @classmethod
    def at(
        cls,
        address: str,
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        hosts: int | None = None,
    ) -> Self:
        """The scheduler at ``tcp://host:port``, or ``tls://host:port`` with PEM files. Raises
        :class:`PlanError` or HostError.

        ``hosts``: wait up to a minute for so many. Without files ``tls://`` uses Dask's
        configuration (``distributed.comm.tls``).
        """
        scheme = _scheme_of(address)
        files = {"--cluster-ca": ca, "--cluster-cert": cert, "--cluster-key": key}
        given = {name: file for name, file in files.items() if file is not None}
        if scheme == "tcp":
            if given:
                raise PlanError(
                    f"{', '.join(given)}: tcp:// is not encrypted, so it needs none; "
                    "write tls:// in --cluster"
                )
            _silence_dask_logs()
            return cls(address, hosts=hosts)
        missing = [name for name in files if name not in given]
        if given and missing:
            raise PlanError(
                f"--cluster: tls:// needs all three of {', '.join(files)}; add {', '.join(missing)}"
            )
        if ca and cert and key:
            identify(trusting("--cluster-ca", ca), ("--cluster-cert", "--cluster-key"), cert, key)
        settings = {}
        if given:
            settings = {"tls_ca_file": ca, "tls_client_cert": cert, "tls_client_key": key}
        security = Security(require_encryption=True, **settings)
        if not security.tls_ca_file:
            raise PlanError(
                f"--cluster: tls:// needs certificates; give {', '.join(files)}, "
                "or set distributed.comm.tls of Dask"
            )
        _silence_dask_logs()
        flags = [f"--cluster {address}"]
        flags += [f"{name} {shlex.quote(file)}" for name, file in given.items()]
        return cls(address, security, hosts=hosts, flags=" ".join(flags))

    @classmethod
    def of(cls, client: Any) -> Self:
        """The cluster of a notebook's ``Client`` or ``LocalCluster``, or of an address. Raises
        :class:`PlanError`.

        It opens its own connection and leaves the client alone.
        """
        if isinstance(client, str):
            return cls.at(client)
        if isinstance(client, cls):
            return client
        scheduler = getattr(client, "scheduler", None)
        address = getattr(scheduler, "address", None)
        if not address:
            address = getattr(client, "scheduler_address", None)
        if not isinstance(address, str) or not address:
            raise PlanError(
                f"cluster: {client!r} is no Dask client with a scheduler; "
                "give one, or an address: tcp://host:8786"
            )
        return cls(address, getattr(client, "security", None))

    async def find_hosts(self, plan: Plan, on_wait: Callable[[str], None]) -> tuple[Limits, Spread]:
        """Find the hosts and spread ``plan`` over them. Returns this host's limits and the fleet's
        spread (``local``: the server is here).

        ``on_wait`` is called with a message when what it waits for changes. Sets ``checks`` and
        :attr:`findings`. Raises :class:`ClusterError`, or PreflightError if the hosts cannot hold
        the plan.
        """
        if not plan.has_ports:
            raise PlanError(
                f"--connect-to and --cluster: the Unix socket {plan.connect_to} is on one host; "
                "leave one out"
            )
        if self._client is None:
            await self._connect()
        members = await self._gather(plan, on_wait)
        fleet = place(plan, members)
        self._fleet = fleet
        self.checks = fleet.checks
        limits = read_limits()
        with contextlib.suppress(AsyncliError):
            # A name that does not resolve here is not this host's.
            limits, here = await probe_host(msgspec.structs.replace(plan, sources=()))
            self._server_there = here.local
        return limits, msgspec.structs.replace(fleet.spread, local=self._server_there)

    def watched_by_agent(self, boot: str | None) -> None:
        """An agent samples the server; ``boot`` is the boot id of its machine, None if unknown."""
        self._agent = True
        self._server_there = True
        self._watched = boot or "elsewhere"

    def _opened_on(self, boot: str) -> int:
        """How many connections the machine with this boot id opens."""
        assert self._fleet is not None
        opened = 0
        for member in self._fleet.members:
            if member.seen.boot == boot:
                opened += self._fleet.share(member.workers)
        return opened

    @property
    def _sampled_ends(self) -> int | None:
        assert self._fleet is not None
        opened = self._opened_on(self._watched)
        return sampled_ends(self._server_there, opened, self._fleet.plan.connections)

    @property
    def findings(self) -> list[Finding]:
        assert self._fleet is not None
        findings = [placement_finding(self._fleet), unencrypted(self.address)]
        if not self._sampled_ends:
            findings.append(cluster_memory(self._sampled_ends, self._agent))
        return [finding for finding in findings if finding is not None]

    @property
    def leave_out(self) -> tuple[str, ...]:
        """Prefixes of the metrics that say nothing about this run."""
        assert self._fleet is not None
        ends = self._sampled_ends
        prefixes = ["generator."]
        if not ends:
            prefixes += ["kernel.", "host."]
        if ends == 0:
            prefixes.append(TCP)
        all_are_here = self._opened_on(machine()) == self._fleet.plan.connections
        # With an agent this host is sampled as a client too, even if it is none.
        if self._agent and not all_are_here:
            prefixes.append(CLIENT)
        return tuple(prefixes)

    def environment(self, hosts: list[dict[str, Any]]) -> dict[str, Any]:
        """The cluster for the run file; ``hosts``: from :meth:`ClusterGenerator.document`."""
        about = {
            "scheduler": self.address, "distributed": distributed.__version__, "hosts": hosts,
            "server_here": self._server_there and not self._agent,
        }  # fmt: skip
        return {"cluster": about, "local": self._sampled_ends == 2}

    def generator(self, shard: Shard) -> ClusterGenerator:
        assert self._fleet is not None
        return ClusterGenerator(self._fleet, shard, self._start_actor, self._find_new_hosts)

    async def close(self) -> None:
        """Disconnect; the actors end by themselves."""
        client = self._client
        self._client = None
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()

    # -- calls to Dask

    async def _connect(self) -> None:
        try:
            # Awaited separately: a client that fails to connect must be closed too.
            self._client = Client(
                self.address,
                security=self._security,
                asynchronous=True,
                timeout=_CONNECT_S,
                set_as_default=False,
                name="asyncli",
            )
            async with asyncio.timeout(_CONNECT_S + 3.0):
                await self._client
        except (OSError, RuntimeError, ValueError, TypeError, MemoryError) as error:
            reason = _reason(error)
            if isinstance(error, MemoryError):
                # HTTP text, read as one of Dask's lengths, exceeds any memory.
                reason = "an answer that is not Dask's"
            raise ClusterError(connect_error(self.address, reason)) from None

    async def _gather(self, plan: Plan, on_wait: Callable[[str], None]) -> list[Member]:
        """The hosts, once there are as many as requested."""
        least, until, announced = self._least or 0, time.monotonic() + _HOSTS_WAIT_S, ""
        while True:
            last = not least or time.monotonic() >= until
            try:
                members = choose(await self._probe_hosts(plan, await self._addresses()), plan)
            except ClusterError as error:
                if last:
                    raise
                why = str(error).partition(";")[0]
            else:
                if len(members) >= least:
                    return members
                joined = ", ".join(member.name for member in members)
                if last:
                    raise ClusterError(
                        f"--cluster-hosts: {len(members)} of {least} hosts joined within "
                        f"{_HOSTS_WAIT_S:.0f} s ({joined}); see the Dask workers' logs on the "
                        "others, or ask for fewer"
                    )
                why = f"{len(members)} joined ({joined})"
            if why != announced:
                announced = why
                on_wait(
                    f"waiting up to {_HOSTS_WAIT_S:.0f} s for "
                    f"{format_many(least, 'client host')}: {why}"
                )
            await asyncio.sleep(1.0)

    async def _addresses(self) -> list[str]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                addresses = sorted(await self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise ClusterError(
                f"the scheduler at {self.address} does not list its workers ({_reason(error)}); "
                "see its log"
            ) from None
        if not addresses:
            raise ClusterError(
                f"the scheduler at {self.address} has no worker; "
                f"start one on each client host: dask worker {self.address}"
            )
        return addresses

    async def _probe_hosts(self, plan: Plan, addresses: list[str]) -> dict[str, HostProbe | str]:
        """Each worker's probe of its host, or the error. Each worker is called separately: one may
        be cut off.
        """
        document = shown_plan(plan)
        probes = await asyncio.gather(
            *(self._probe_from(address, document) for address in addresses)
        )
        return dict(zip(addresses, probes, strict=True))

    async def _probe_from(self, address: str, document: Mapping[str, Any]) -> HostProbe | str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = (
                    await self._client.run(
                        probe_client_host, document, workers=[address], on_error="return"
                    )
                )[address]
        except (OSError, RuntimeError) as error:
            answer = error
        if isinstance(answer, bytes):
            return read_probe(answer)
        reason = _reason(answer)
        if "No module named 'asyncli" in reason:
            return (
                f"has no asyncli, or an older one; install asyncli[dask] {__version__} there, in "
                "the Python that runs it"
            )
        return f"cannot be probed ({reason}); see its log"

    async def _find_new_hosts(self, known: set[str]) -> list[Member]:
        """Hosts other than those at the places ``known``."""
        assert self._fleet is not None
        plan = self._fleet.plan
        if self._client is None or self._client.status != "running":
            # The client has lost its scheduler.
            await self.close()
            await self._connect()
        answers = await self._probe_hosts(plan, await self._addresses())
        probes = {
            address: probe for address, probe in answers.items() if isinstance(probe, HostProbe)
        }
        # A session holds all workers of a host.
        taken = known | {probe.place for probe in probes.values() if probe.held_by}
        usable: dict[str, HostProbe | str] = {}
        for address, probe in probes.items():
            if probe.place not in taken and not probe.why_not:
                usable[address] = probe
        return choose(usable, plan)

    async def _start_actor(self, member: Member) -> _Actor:
        from asyncli.cluster.actor import HostActor

        key = f"asyncli-{uuid.uuid4().hex}"
        # Results bind to the current client, which may be a notebook's.
        with self._client.as_current():
            future = self._client.submit(
                HostActor,
                self._session_name,
                actor=True,
                workers=[member.address],
                key=key,
                pure=False,
            )
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return _Actor(future, await future)
            except BaseException as error:
                future.release()
                if not isinstance(error, Exception):
                    raise
                why = _reason(error)
                if isinstance(error, TimeoutError):
                    why = f"nothing within {_ANSWER_S:.0f} s"
                raise ClusterError(
                    f"no actor can be started on {member.name} ({member.address}): {why}"
                ) from None


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


def connect_error(address: str, reason: str) -> str:
    """The message for a scheduler that does not answer, from the connect's error."""
    if not any(words in reason.lower() for words in _SOMETHING_LISTENS):
        return f"no Dask scheduler answers at {address} ({reason}); start one: dask scheduler"
    if address.startswith("tls"):
        problem = "rejects our certificate, has an untrusted one, or speaks no TLS"
        remedy = "give certificates of the authority that it was started with, or write tcp://"
    else:
        problem, remedy = "it is no Dask scheduler without TLS", "if it speaks TLS, write tls://"
    return f"something listens at {address}, but {problem} ({reason}); {remedy}"


def _reason(error: BaseException) -> str:
    """The root cause of one of Dask's errors, in one line."""
    words = ""
    seen: BaseException | None = error
    while seen is not None:
        words = " ".join(str(seen).split()) or words
        seen = seen.__cause__ or seen.__context__
    if not words and isinstance(error, TimeoutError):
        return "no answer in time"
    if not words:
        words = type(error).__name__
    return words[:200]


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "nobody"


def _silence_dask_logs() -> None:
    """Silence Dask's logs: its errors are reported in one line."""
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Only asyncli's own version must match.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
