"""The protocol between agent and soak: JSON over HTTP, one version. Both sides validate by these
types.

GET /v1/hello describes the agent; POST and DELETE /v1/lease take and release the lease; GET
/v1/samples?after=N returns the samples after N; POST /v1/sample?after=N takes a sample of
everything first; POST /v1/collection, which has no parameter, asks the server's runtime for a
collection. Instants are seconds of the agent's monotonic clock; :mod:`asyncli.collect.clocks`
converts them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from asyncli.collect.locate import ServerFacts
from asyncli.model.errors import HostError
from asyncli.model.records import Finding
from asyncli.model.secret_variables import TOKEN_VARIABLE, secret
from asyncli.preflight.configured import Configured
from asyncli.preflight.host_limits import Limits

#: Incremented when either side would misread the other; until then fields keep their names on the
#: wire (``name=``).
PROTOCOL = 1
PROTOCOL_HEADER, LEASE_HEADER = "Asyncli-Protocol", "Asyncli-Lease"
#: How long the agent buffers samples (s): a shorter network cut loses nothing.
KEEPS_S = 600.0
#: How long a lease lasts without renewal (s).
LEASE_S = 15.0
#: The most samples and findings in one answer.
MOST_ROWS = 60
#: A shorter token can be guessed; a longer text is another file.
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512
_LONGEST_HOLDER = 200
#: Why an agent refuses a collection.
NO_COLLECTIONS = (
    "it may not ask the server for collections; start it with --allow-collect, or leave --collect "
    "out"
)

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: Bytes that were measured.
Size = Annotated[float, msgspec.Meta(ge=0, le=2**53)]
#: An instant of a monotonic clock (s).
Instant = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Instants(msgspec.Struct, frozen=True):
    """When the agent received the request and when it answered (s)."""

    received_s: Instant = msgspec.field(name="heard_s")
    answered_s: Instant = msgspec.field(name="said_s")


class SampleRow(msgspec.Struct, frozen=True):
    n: Number
    t_s: float
    values: dict[str, float]


class FindingRow(msgspec.Struct, frozen=True):
    """A finding of the agent's collector, made at ``t_s`` after sample ``n``."""

    n: Number
    t_s: float
    finding: Finding


class Batch(msgspec.Struct, frozen=True):
    """Samples after the requested number, in order. ``first``: the oldest in the buffer;
    ``newest``: the last.

    ``instance`` changes when the agent restarts: sample numbers then start at 1.
    """

    instance: str
    clock: Instants
    first: Number
    newest: Number
    rows: list[SampleRow]
    findings: list[FindingRow] = msgspec.field(name="said")


class Hello(msgspec.Struct, frozen=True):
    """The agent, its host and the server. ``network``: the network namespace. ``lasting``: lasting
    findings; ``latest``: the last values.
    """

    protocol: int
    asyncli: str
    instance: str
    started_s: Instant
    clock: Instants
    host: str
    boot_id: str | None
    network: str | None
    server: ServerFacts
    limits: Limits
    configured: Configured
    status_url: str | None
    environment: dict[str, Any]
    newest: Number
    latest: dict[str, float]
    lasting: list[Finding] = msgspec.field(name="standing")
    #: Whether it asks the server's runtime for collections. Earlier versions do not.
    collects: bool = False


class Version(msgspec.Struct, frozen=True):
    """The fields of every version's hello."""

    protocol: int
    asyncli: str = "?"


class LeaseRequest(msgspec.Struct, frozen=True):
    holder: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_HOLDER)]


class LeaseGrant(msgspec.Struct, frozen=True):
    """A lease token; it expires :data:`LEASE_S` after the last renewal."""

    lease: str
    newest: Number


class Collected(msgspec.Struct, frozen=True):
    """What was alive (bytes) after a collection of the server's heap, and what its objects held
    outside it; ``failed``: why there was none, "" if there was, and the ``remedy``.
    """

    live_bytes: Size | None
    failed: str = ""
    outside_bytes: Size | None = None
    remedy: str = ""


class Refusal(msgspec.Struct, frozen=True):
    error: str


def read_token(path: str | None, flag: str) -> str | None:
    """The token in the file ``path``, else in the environment; None without either.

    Raises :class:`HostError` for an unreadable file or a malformed token. ``flag``: the flag that
    names the file.
    """
    if path is None:
        where, text = TOKEN_VARIABLE, secret(TOKEN_VARIABLE)
        if not text:
            return None
    else:
        where = f"{flag} {path}"
        try:
            with open(path, encoding="utf-8-sig", errors="replace") as file:
                text = file.read(LONGEST_TOKEN + 2)
        except OSError as error:
            raise HostError(
                f"{where}: cannot be read ({error.strerror}); name a file with the token in it"
            ) from None
    token = text.strip()
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not all(
        33 <= ord(char) <= 126 for char in token
    ):
        rule = (
            f"a token is {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable characters of ASCII "
            "without blanks"
        )
        raise HostError(
            f"{where}: holds no token: {rule}; make one: head -c 24 /dev/urandom | base64"
        )
    return token
