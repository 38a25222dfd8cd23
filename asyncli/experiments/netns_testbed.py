"""Programs in network namespaces: nginx and its clients as in the original experiment, an agent beside nginx."""

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

from asyncli.errors import EngineError
from asyncli.experiments.context import Context
from asyncli.experiments.soak_ladder import Charges, charged
from asyncli.lab import child
from asyncli.lab.network import Network
from asyncli.lab.nginx import LabNginx
from asyncli.units import parse_duration

#: The source's addresses.
SERVER, CLIENTS = "server", ("client .9", "client .10")
HOSTS = {SERVER: "192.168.1.8/24", CLIENTS[0]: "192.168.1.9/24", CLIENTS[1]: "192.168.1.10/24"}
#: The host of a fleet's session.
SESSION = "session"
FLEET = {**HOSTS, SESSION: "192.168.1.7/24"}
#: Ports for as many connections as the source asked of each client.
SYSCTLS = {host: {"net.ipv4.ip_local_port_range": "1024 61024"} for host in CLIENTS}
# The source's.
_KEEPALIVE_TIMEOUT_S = 3600
_AGENT_PORT, _SCHEDULER_PORT = 9165, 8786
AGENT, SCHEDULER, WORKER = "the agent", "the scheduler", "the Dask worker"
_STARTS_S = 30.0
_LAST_WORDS = 300


class Running:
    """A program that was started on ``host``."""

    def __init__(self, host: str, what: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.host, self.what, self.process, self._log = host, what, process, log

    @property
    def said(self) -> str:
        """Its standard output and error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def last_words(self) -> str:
        return " ".join(self.said.split())[-_LAST_WORDS:] or "it said nothing"

    async def until_said(self, pattern: str, within_s: float = _STARTS_S) -> re.Match[str]:
        """Wait for the first match in its output. Raises :class:`EngineError` where it ends before, or takes longer."""
        found: re.Match[str] | None = None

        def look() -> bool:
            nonlocal found
            # Asked first: after its end the output is complete.
            over = self.ended
            found = re.search(pattern, self.said)
            return found is not None or over

        await child.until(look, within_s)
        if found is None:
            how = f"ended with {self.process.returncode}" if self.ended else f"has not got so far after {within_s:.0f} s"
            raise EngineError(f"{self.what} of {self.host} {how} ({self.last_words}); look at the host's load")
        return found


class Programs:
    """``async with Programs(network) as programs``: programs started in it end with it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        #: All that were started, in that order.
        self.running: list[Running] = []
        self._folder = tempfile.TemporaryDirectory(prefix="asyncli-logs-")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await asyncio.gather(*(child.end(one.process) for one in self.running))
        finally:
            # Also when cancelled.
            for one in self.running:
                child.kill_group(one.process.pid)
            self._folder.cleanup()

    def start(
        self, host: str, what: str, module: str, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Running:
        """Run ``python -m module words`` on ``host`` with this Python and package; errors name it ``what``."""
        log = Path(self._folder.name) / f"{len(self.running)}.log"
        argv = [sys.executable, "-m", module, *words]
        with log.open("wb") as stream, self._network.inside(host):
            env = child.import_environment() | dict(environment or {})
            process = child.spawn(argv, stdout=stream.fileno(), stderr=stream, cwd=log.parent, env=env)
        self.running.append(found := Running(host, what, process, log))
        return found

    async def cluster(self, host: str) -> str:
        """A Dask scheduler on ``host`` and a worker on each client's; the scheduler's address."""
        own = self._network.address(host)
        address = f"tcp://{own}:{_SCHEDULER_PORT}"
        words = ["scheduler", "--host", own, "--port", str(_SCHEDULER_PORT), "--no-dashboard"]
        await self.start(host, SCHEDULER, "dask", words).until_said("Scheduler at:")
        words = ["worker", address, "--nworkers", "1", "--nthreads", "1", "--no-dashboard"]
        for worker in [self.start(client, WORKER, "dask", words) for client in CLIENTS]:
            await worker.until_said("Registered to")
        return address

    async def agent(self, status_url: str) -> tuple[str, dict[str, str]]:
        """``asyncli agent`` beside nginx, sampling: its URL, and the environment with the token by which it is asked."""
        # The environment hides it from other users.
        environment = {"ASYNCLI_AGENT_TOKEN": secrets.token_urlsafe(24)}
        listen = f"{self._network.address(SERVER)}:{_AGENT_PORT}"
        agent = self.start(SERVER, AGENT, "asyncli", ["agent", "--status-url", status_url, "--listen", listen], environment)
        return (await agent.until_said(r"listens at (\S+)"))[1], environment


async def in_rounds(context: Context, label: str, measure: Callable[[Context, int, Path], Awaitable[None]]) -> None:
    """Run each round of ``measure`` as the step ``label``, with its number and a folder for run files."""
    with contextlib.ExitStack() as stack:
        folder = context.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncli-testbed-")))
        for number in range(context.plan.rounds):
            if context.wanted("nginx"):
                with context.step("nginx", label):
                    await measure(context, number, folder)


@contextlib.asynccontextmanager
async def serving(context: Context, network: Network, most: int) -> AsyncIterator[tuple[LabNginx, Charges]]:
    """nginx with the source's settings on the server's host, sized for ``most``, and its control group's charge. This thread is
    on that host until the block's end."""
    address, keepalive_s = network.address(SERVER), parse_duration(context.plan.keepalive)
    nginx = LabNginx(most, 80, keepalive_s, address, keepalive_timeout_s=_KEEPALIVE_TIMEOUT_S)
    with network.inside(SERVER):
        async with charged(context, nginx) as charges:
            context.met(nginx)
            yield nginx, charges


def soak_words(plan: Any, nginx: LabNginx, connections: int, file: Path) -> list[str]:
    """The command line of a soak by an experiment's plan."""
    return [
        "soak", nginx.url, "-c", str(connections), "-k", plan.keepalive, "--ramp", f"10/{10_000 / plan.rate:g}ms",
        "--hold", plan.duration, "--baseline", plan.baseline, "--residue", plan.baseline, "--out", str(file.absolute()),
    ]  # fmt: skip


def suffix(number: int) -> str:
    """The suffix of the files of round ``number``."""
    return f"-{number + 1}" if number else ""
