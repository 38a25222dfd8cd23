"""The client of an agent: one request at a time, validated by the types of wire.py, bounded in time
and size.
"""

from __future__ import annotations

import time
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from asyncli import __version__
from asyncli.agent import wire
from asyncli.collect.clocks import ClockOffset, Exchange
from asyncli.collect.forced_collection import StillAlive
from asyncli.collect.http import KeptConnection, reason, untrusted
from asyncli.model.certificates import trusting
from asyncli.model.errors import CannotCollectError, HeldError, PeerError
from asyncli.model.plan import Plan
from asyncli.model.secret_variables import TOKEN_VARIABLE
from asyncli.model.text import plain
from asyncli.model.values import parse_url

# An answer takes milliseconds; the first hello parses a configuration and runs a program.
_ANSWER_S, _HELLO_S = 2.5, 10.0
# The agent answers after 25 s at most.
_COLLECTION_S = 27.0
#: For a sample of everything: twice the collector's border wait, and the round trip.
BORDER_S = 7.0
# Round trips of the first clock measurement: the shortest counts.
_ROUND_TRIPS = 8
_LONGEST_REASON = 500
_NO_AGENT = "see that --agent names an asyncli agent"
T = TypeVar("T")


class AgentError(PeerError):
    """The agent failed. ``lost``: it may answer again; else it refused."""

    lost = False


class LostError(AgentError):
    """The agent does not answer."""

    lost = True


class AgentHeldError(AgentError, HeldError):
    """Another session holds the lease, or ours has expired."""


class AgentClient:
    """A client of the plan's agent. For one event loop; close it.

    Methods raise :class:`AgentError`, the constructor :class:`HostError` for an unreadable token or
    authority.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.agent is not None
        self.url = plan.agent
        self.clock = ClockOffset()
        self._token = wire.read_token(plan.agent_token_file, "--agent-token-file")
        self._token_source = plan.agent_token_file or TOKEN_VARIABLE
        self._tls = trusting("--agent-ca", plan.agent_ca) if parse_url(self.url).secure else None
        self._lease = ""
        headers = {"User-Agent": f"asyncli/{__version__}", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        self._connection = KeptConnection(headers, self._tls)
        # Samples are read while the server collects.
        self._collections = KeptConnection(headers, self._tls)

    @property
    def in_the_clear(self) -> bool:
        """Whether the token is sent over a network unencrypted."""
        host = urlsplit(self.url).hostname or ""
        return (
            self._token is not None
            and self._tls is None
            and host not in ("localhost", "::1")
            and not host.startswith("127.")
        )

    async def hello(self, *, measure: bool = True) -> wire.Hello:
        """The agent, its host and the server; ``measure``: also measure its clock's offset."""
        body = await self._ask("GET", "/v1/hello", within_s=_HELLO_S)
        hello = self._read(body, wire.Hello)
        for _ in range(_ROUND_TRIPS if measure else 0):
            asked_s = time.monotonic()
            again = self._read(await self._ask("GET", "/v1/hello"), wire.Hello)
            self._add_exchange(asked_s, again.clock)
        return hello

    async def take_lease(self, holder: str) -> wire.LeaseGrant:
        """Take the lease. Raises :class:`AgentHeldError` with the holder's name if another session
        has it.
        """
        body = msgspec.json.encode(wire.LeaseRequest(holder[:200]))
        granted = self._read(await self._ask("POST", "/v1/lease", body=body), wire.LeaseGrant)
        self._lease = granted.lease
        return granted

    async def release_lease(self) -> None:
        await self._ask("DELETE", "/v1/lease")

    async def samples(self, after: int, now_within_s: float | None = None) -> wire.Batch:
        """Samples after number ``after``. With ``now_within_s`` the agent first takes one of
        everything, within that time.
        """
        asked_s = time.monotonic()
        if now_within_s is None:
            body = await self._ask("GET", f"/v1/samples?after={after}")
        else:
            body = await self._ask("POST", f"/v1/sample?after={after}", within_s=now_within_s)
        batch = self._read(body, wire.Batch)
        self._add_exchange(asked_s, batch.clock)
        return batch

    async def collection(self) -> StillAlive | None:
        """Ask the server's runtime for a collection: what is alive after it. May be asked
        while another request is under way. Raises :class:`AgentError`, and
        :class:`CannotCollectError` where there was none.
        """
        body = await self._ask(
            "POST", "/v1/collection", within_s=_COLLECTION_S, connection=self._collections
        )
        collected = self._read(body, wire.Collected)
        if collected.failed:
            why = f"agent {self.url}: {collected.failed[:_LONGEST_REASON]}"
            raise CannotCollectError(why, collected.remedy[:_LONGEST_REASON])
        if collected.live_bytes is None:
            return None
        return StillAlive(collected.live_bytes, collected.outside_bytes)

    async def close(self) -> None:
        await self._connection.close()
        await self._collections.close()

    def _add_exchange(self, asked_s: float, clock: wire.Instants) -> None:
        self.clock.add(Exchange(asked_s, clock.received_s, clock.answered_s, time.monotonic()))

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        within_s: float = _ANSWER_S,
        connection: KeptConnection | None = None,
    ) -> bytes:
        import aiohttp

        headers = {wire.PROTOCOL_HEADER: str(wire.PROTOCOL)}
        if self._lease:
            headers[wire.LEASE_HEADER] = self._lease
        try:
            answer = await (connection or self._connection).ask(
                method, self.url + path, within_s=within_s, headers=headers, body=body
            )
        except TimeoutError:
            raise self._lost(f"no answer in {within_s:g} s") from None
        except aiohttp.ClientSSLError as error:
            raise self._error(*untrusted(error, "--agent-ca")) from None
        except aiohttp.ServerDisconnectedError:
            hint = "" if self._tls else "; if it speaks TLS, write https://"
            raise self._lost(f"it closed the connection{hint}") from None
        except aiohttp.ClientOSError as error:
            raise self._lost(reason(error) if error.errno else "it closed the connection") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._error(f"does not speak HTTP ({type(error).__name__})", _NO_AGENT) from None
        if not answer.whole:
            raise self._error("its answer is longer than an agent's", _NO_AGENT)
        if answer.status not in (200, 204):
            raise self._refused(answer.status, answer.body)
        return answer.body

    def _read(self, body: bytes, kind: type[T]) -> T:
        try:
            # A ValueError: it is no JSON, no UTF-8, or another type.
            return msgspec.convert(plain(msgspec.json.decode(body)), kind)
        except (ValueError, RecursionError) as error:
            try:
                version = msgspec.json.decode(body, type=wire.Version)
            except (ValueError, RecursionError):
                version = None
            if version is not None and version.protocol != wire.PROTOCOL:
                raise self._version(version) from None
            raise self._error(
                f"its answer is no {kind.__name__} ({str(error)[:120]})", _NO_AGENT
            ) from None

    def _refused(self, status: int, body: bytes) -> AgentError:
        try:
            why = msgspec.convert(plain(msgspec.json.decode(body)), wire.Refusal).error[:300]
        except (ValueError, RecursionError):
            return self._error(f"answers {status}", _NO_AGENT)
        if status == 401 and self._token is None:
            return self._error(
                "requires a token",
                f"name its file with --agent-token-file, or set {TOKEN_VARIABLE}",
            )
        if status == 401:
            return self._error(
                f"refuses the token of {self._token_source}",
                "give the one that the agent was started with",
            )
        if why == wire.NO_COLLECTIONS:
            return AgentError(f"agent {self.url}: {why}")
        if status == 409:
            return AgentHeldError(
                f"agent {self.url}: {why}; end that session, or wait {wire.LEASE_S:.0f} s after "
                "its end"
            )
        if status == 426:
            return self._error(
                f"refuses asyncli {__version__}: {why}", "install the same asyncli on both hosts"
            )
        if status in (408, 429):
            return LostError(f"agent {self.url}: {why}; asyncli asks again")
        return self._error(f"refuses: {why}", "see its log")

    def _version(self, version: wire.Version) -> AgentError:
        return self._error(
            f"is asyncli {version.asyncli[:40]!r} and speaks protocol {version.protocol}, "
            f"and this is {__version__} with {wire.PROTOCOL}",
            "install the same asyncli on both hosts",
        )

    def _error(self, what: str, remedy: str) -> AgentError:
        return AgentError(f"agent {self.url}: {what}; {remedy}")

    def _lost(self, why: str) -> LostError:
        return LostError(
            f"agent {self.url}: {why}; see that 'asyncli agent' runs there and that this host can "
            "reach it"
        )
