"""The agent's lease: one session at a time, by a token that expires without renewal. Pure; time is seconds."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from asyncli.agent.wire import LEASE_S


class Lease:
    """``draw`` makes tokens that cannot be guessed."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._token, self._until_s = "", float("-inf")
        #: The holder's name.
        self.holder = ""

    def take(self, holder: str, now_s: float) -> str | None:
        """A new token for ``holder``; None while another session holds it."""
        if self._token and now_s < self._until_s:
            return None
        self._token, self.holder, self._until_s = self._draw(), holder, now_s + LEASE_S
        return self._token

    def renew(self, token: str, now_s: float) -> bool:
        """Extend the lease of ``token``, also an expired one that nobody took; False where it is not ours."""
        if not self.known(token):
            return False
        self._until_s = now_s + LEASE_S
        return True

    def known(self, token: str) -> bool:
        """Whether ``token`` is that of the last holder."""
        return bool(self._token) and same(token, self._token)

    def leave(self, token: str) -> bool:
        if not self.known(token):
            return False
        self._token = self.holder = ""
        return True

    def held(self, now_s: float) -> bool:
        return bool(self._token) and now_s < self._until_s


def same(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))
