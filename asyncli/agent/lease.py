"""Access to an agent: one session at a time, by a lease that expires without renewal. Pure; times
in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncli.agent.wire import LEASE_S
from asyncli.web.guard import equal_secrets


class Lease:
    """A lease for one holder; ``draw`` returns unguessable tokens."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._token = ""
        self._until_s = float("-inf")
        #: The holder's name.
        self.holder = ""

    def take(self, holder: str, now_s: float) -> str | None:
        """A new token for ``holder``; None while another session has the lease."""
        if self._token and now_s < self._until_s:
            return None
        self._token = self._draw()
        self.holder = holder
        self._until_s = now_s + LEASE_S
        return self._token

    def renew(self, token: str, now_s: float) -> bool:
        """Extend the lease of ``token``, even an expired one if no other session took it. False for
        another token.
        """
        if not self.matches(token):
            return False
        self._until_s = now_s + LEASE_S
        return True

    def matches(self, token: str) -> bool:
        """Whether ``token`` is the last holder's."""
        return bool(self._token) and equal_secrets(token, self._token)

    def release(self, token: str) -> bool:
        if not self.matches(token):
            return False
        self._token = self.holder = ""
        return True

    def held(self, now_s: float) -> bool:
        return bool(self._token) and now_s < self._until_s
