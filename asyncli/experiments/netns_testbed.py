"""Programs in network namespaces: nginx and its clients as in the original experiment, and an agent
beside nginx.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from asyncli.experiments.context import Context
from asyncli.experiments.soak_ladder import Charges, measured_in_cgroup
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNginx
from asyncli.model.errors import EngineError
from asyncli.model.units import parse_duration

#: The source's addresses.
SERVER = "server"
CLIENTS = ("client .9", "client .10")
HOSTS = {SERVER: "192.168.1.8/24", CLIENTS[0]: "192.168.1.9/24", CLIENTS[1]: "192.168.1.10/24"}
#: The host of a cluster's session.
SESSION = "session"
FLEET = {**HOSTS, SESSION: "192.168.1.7/24"}
#: Enough ports for the source's number of connections per client.
SYSCTLS = {host: {"net.ipv4.ip_local_port_range": "1024 61024"} for host in CLIENTS}
# The source's setting.
_KEEPALIVE_TIMEOUT_S = 3600
_AGENT_PORT = 9165
_SCHEDULER_PORT = 8786
AGENT = "the agent"
SCHEDULER = "the scheduler"
WORKER = "the Dask worker"
_START_S = 30.0
_MAX_LAST_WORDS = 300


class Running:
    """A program that runs on ``host``."""

    def __init__(self, host: str, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.host = host
        self.name = name
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """Its standard output and error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def last_words(self) -> str:
        return " ".join(self.output.split())[-_MAX_LAST_WORDS:] or "it printed nothing"

    async def wait_for_output(self, pattern: str, within_s: float = _START_S) -> re.Match[str]:
        """Wait for the first match in its output. Raises :class:`EngineError` if it ends without
        one, or after ``within_s``.
        """
        match: re.Match[str] | None = None

        def matched_or_ended() -> bool:
            nonlocal match
            # Before reading: after its end the output is complete.
            ended = self.ended
            match = re.search(pattern, self.output)
            return match is not None or ended

        await child.until(matched_or_ended, within_s)
        if match is None:
            state = f"is not ready after {within_s:.0f} s"
            if self.ended:
                state = f"ended with status {self.process.returncode}"
            raise EngineError(
                f"{self.name} of {self.host} {state} ({self.last_words}); look at the host's load"
            )
        return match


class Programs:
    """``async with Programs(network) as programs``: programs started in it end with it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        #: In the order of their start.
        self.running: list[Running] = []
        self._folder = tempfile.TemporaryDirectory(prefix="asyncli-logs-")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await asyncio.gather(*(child.end(program.process) for program in self.running))
        finally:
            for program in self.running:
                child.kill_group(program.process.pid)
            self._folder.cleanup()

    def start(
        self,
        host: str,
        name: str,
        module: str,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Run ``python -m module words`` on ``host`` with this Python and package; errors call it
        ``name``.
        """
        log = Path(self._folder.name) / f"{len(self.running)}.log"
        argv = [sys.executable, "-m", module, *words]
        with log.open("wb") as stream, self._network.inside(host):
            env = child.import_environment() | dict(environment or {})
            process = child.spawn(
                argv, stdout=stream.fileno(), stderr=stream, cwd=log.parent, env=env
            )
        program = Running(host, name, process, log)
        self.running.append(program)
        return program

    async def cluster(self, host: str) -> str:
        """Start a Dask scheduler on ``host`` and a worker on each client host; returns the
        scheduler's address.
        """
        own = self._network.address(host)
        address = f"tcp://{own}:{_SCHEDULER_PORT}"
        words = ["scheduler", "--host", own, "--port", str(_SCHEDULER_PORT), "--no-dashboard"]
        await self.start(host, SCHEDULER, "dask", words).wait_for_output("Scheduler at:")
        words = ["worker", address, "--nworkers", "1", "--nthreads", "1", "--no-dashboard"]
        for worker in [self.start(client, WORKER, "dask", words) for client in CLIENTS]:
            await worker.wait_for_output("Registered to")
        return address

    async def agent(self, status_url: str) -> tuple[str, dict[str, str]]:
        """Start ``asyncli agent`` beside nginx; returns its URL, and the environment with its token
        for clients.
        """
        # In the environment other users cannot see it.
        environment = {"ASYNCLI_AGENT_TOKEN": secrets.token_urlsafe(24)}
        listen = f"{self._network.address(SERVER)}:{_AGENT_PORT}"
        words = ["agent", "--status-url", status_url, "--listen", listen]
        agent = self.start(SERVER, AGENT, "asyncli", words, environment)
        listens = await agent.wait_for_output(r"listens at (\S+)")
        return listens[1], environment


async def in_rounds(
    context: Context, label: str, measure: Callable[[Context, int, Path], Awaitable[None]]
) -> None:
    """Run ``measure`` once per round as the step ``label``, with the round's number and a folder
    for run files.
    """
    with contextlib.ExitStack() as stack:
        folder = context.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncli-testbed-"))
        )
        for number in range(context.plan.rounds):
            if context.wanted("nginx"):
                with context.step("nginx", label):
                    await measure(context, number, folder)


@contextlib.asynccontextmanager
async def serving(
    context: Context, network: Network, most: int
) -> AsyncIterator[tuple[LabNginx, Charges]]:
    """Run nginx with the source's settings on the server's host, sized for ``most`` connections;
    yields it and its group's charge. This thread is on that host during the block.
    """
    address = network.address(SERVER)
    keepalive_s = parse_duration(context.plan.keepalive)
    nginx = LabNginx(most, 80, keepalive_s, address, keepalive_timeout_s=_KEEPALIVE_TIMEOUT_S)
    with network.inside(SERVER):
        async with measured_in_cgroup(context, nginx) as charges:
            context.record_server(nginx)
            yield nginx, charges


def soak_arguments(plan: Any, nginx: LabNginx, connections: int, file: Path) -> list[str]:
    """The arguments of a soak by an experiment's plan."""
    return [
        *("soak", nginx.url),
        *("-c", str(connections)),
        *("-k", plan.keepalive),
        *("--ramp", f"10/{10_000 / plan.rate:g}ms"),
        *("--hold", plan.duration),
        *("--baseline", plan.baseline),
        *("--residue", plan.baseline),
        *("--out", str(file.absolute())),
    ]


def suffix(number: int) -> str:
    """The suffix of file names of round ``number``."""
    return f"-{number + 1}" if number else ""
