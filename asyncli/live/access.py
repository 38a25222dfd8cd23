"""Who may look at a live page, and who may change its run.

Everybody who reaches it may look; whoever changes the run must have the token, on loopback too.
Beyond loopback the token is required of everybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from aiohttp import web

from asyncli.live.answers import json_answer
from asyncli.web.guard import Guard

# Requests of one address: a page asks some twenty times when it is opened, then only for marks.
_PER_S = 20.0
_BURST = 200.0
# A mark is a line of text, and a stop is nothing.
_CHANGE_S = 10.0
# The pages themselves are no secret: they ask for the token, and for the rest with it. A page is
# the same whether there is such a run or not.
_OPEN = re.compile(r"/|/-/healthy|/assets/[^/]*|/run/[^/]*/?")


class Access:
    """The doorkeeper of a live page at ``host``. ``must_have_token``: looking needs it too. ``log``
    gets a line for each refusal.
    """

    def __init__(
        self, token: str, host: str, log: Callable[[str], None], *, must_have_token: bool
    ) -> None:
        looker = token if must_have_token else None
        #: Of those who may look.
        self.guard = Guard(looker, host, log, per_s=_PER_S, burst=_BURST)
        self._changers = Guard(token, host, log, per_s=_PER_S, burst=_BURST)

    async def admit(self, request: web.Request, address: str) -> bool:
        """Whether the client has the token. Raises :class:`~asyncli.web.guard.RefusedError`."""
        # A flood of strangers, who may share the address of a tunnel, costs the owner nothing.
        is_owner = self.is_owner(request)
        self.guard.check_rate(f"{address} owner" if is_owner else address)
        # A page of another site does not know the token, whatever its name resolves to.
        if not is_owner:
            self.guard.check_host(request)
        if request.method == "POST":
            await self._changers.check_token(request)
        elif _OPEN.fullmatch(request.path) is None:
            await self.guard.check_token(request)
        return is_owner

    def is_owner(self, request: web.Request) -> bool:
        """Whether the client may change a run."""
        return self._changers.is_authorized(request)

    def longest_s(self, request: web.Request) -> float | None:
        """How long a change may take, with the client's sending it; an answer sees to itself."""
        return _CHANGE_S if request.method == "POST" else None

    def refusal(self, status: int, why: str) -> web.Response:
        """The answer to a request that is refused."""
        return json_answer({"error": why}, status)
