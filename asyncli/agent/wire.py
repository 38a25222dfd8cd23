"""What agent and soak say to each other: JSON over HTTP, of one version. Both sides hold what they get to these types.

GET /v1/hello is who and where the agent is; POST and DELETE /v1/lease take and leave it; GET /v1/samples?after=N is what came
since sample N, POST /v1/sample?after=N the same after one more was taken of everything, at once. Instants are seconds of the
agent's monotonic clock, which only the exchange of :mod:`asyncli.collect.clock_offset` makes comparable with another host's.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from asyncli.collect.locate import ServerFacts
from asyncli.errors import HostError
from asyncli.preflight.configured import Configured
from asyncli.preflight.limits import Limits
from asyncli.records import Finding
from asyncli.secret_variables import TOKEN_VARIABLE, secret

#: Raised when either side would misread the other.
PROTOCOL = 1
PROTOCOL_HEADER, LEASE_HEADER = "Asyncli-Protocol", "Asyncli-Lease"
#: What the agent keeps (s): a network that was cut for less loses nothing.
KEEPS_S = 600.0
#: A session that has not been heard of for so long (s) holds the agent no more where another asks for it.
LEASE_S = 15.0
#: Samples and findings in one answer; who is behind asks again.
MOST_ROWS = 60
#: A token shorter than this can be guessed by asking; one longer than that is another file.
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512
_LONGEST_HOLDER = 200

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
#: An instant of a monotonic clock (s): of no host that has been up for 30,000 years.
Instant = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Instants(msgspec.Struct, frozen=True):
    """When the agent received the question and when it answered (s)."""

    heard_s: Instant
    said_s: Instant


class SampleRow(msgspec.Struct, frozen=True):
    n: Number
    t_s: float
    values: dict[str, float]


class FindingRow(msgspec.Struct, frozen=True):
    """A finding of the agent's collector, made at ``t_s``; the first of its kind after sample ``n``."""

    n: Number
    t_s: float
    finding: Finding


class Batch(msgspec.Struct, frozen=True):
    """Samples after the one that was named, in order. ``first``: the oldest that is kept; ``newest``: the last that there is.

    ``instance`` changes when the agent restarts: its sample numbers then start again from 1.
    """

    instance: str
    clock: Instants
    first: Number
    newest: Number
    rows: list[SampleRow]
    said: list[FindingRow]


class Hello(msgspec.Struct, frozen=True):
    """The agent, its host and the server there. ``network`` tells one network namespace of a host from another.

    ``standing``: findings that apply to every session; ``latest``: the last sample's values.
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
    standing: list[Finding]


class Version(msgspec.Struct, frozen=True):
    """What the hello of every version has."""

    protocol: int
    asyncli: str = "?"


class Wish(msgspec.Struct, frozen=True):
    holder: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_HOLDER)]


class Granted(msgspec.Struct, frozen=True):
    """A lease token; it expires :data:`LEASE_S` after the last renewal."""

    lease: str
    newest: Number


class Refusal(msgspec.Struct, frozen=True):
    error: str


def read_token(path: str | None, flag: str) -> str | None:
    """The token in the file ``path``, else that of the environment; None without either. It never stands in a command line.

    Raises :class:`HostError` for a file that cannot be read and for what is no token; ``flag`` is what named the file.
    """
    if path is None:
        where, text = TOKEN_VARIABLE, secret(TOKEN_VARIABLE)
        if not text:
            return None
    else:
        where = f"{flag} {path}"
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.read(LONGEST_TOKEN + 2)
        except OSError as error:
            raise HostError(f"{where}: cannot be read ({error.strerror}); name a file with the token in it") from None
    token = text.strip()
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not all(33 <= ord(char) <= 126 for char in token):
        what = f"a token is {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable characters of ASCII without blanks"
        raise HostError(f"{where}: holds no token: {what}; make one: head -c 24 /dev/urandom | base64")
    return token
