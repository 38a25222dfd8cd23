"""What the processes of all hosts use, summed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from asyncli.metrics import GENERATOR_CPU_S


class Usage:
    """The last measurement of each host, and the CPU time of those that were lost: what is spent stays spent."""

    def __init__(self) -> None:
        self._last: dict[str, Mapping[str, float]] = {}
        self._heard: set[str] = set()
        self._spent_s = 0.0

    def measured(self, host: str, values: Mapping[str, float], living: Collection[str]) -> dict[str, float] | None:
        """The sum, once each of the ``living`` has been heard since the last one."""
        self._last[host] = values
        self._heard.add(host)
        if not self._heard.issuperset(living):
            return None
        self._heard.clear()
        whole: Counter[str] = Counter()
        for one in ({GENERATOR_CPU_S: self._spent_s}, *self._last.values()):
            whole.update(one)
        return dict(whole)

    def lose(self, host: str) -> None:
        self._spent_s += self._last.pop(host, {}).get(GENERATOR_CPU_S, 0.0)
