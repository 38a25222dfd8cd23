"""Runs generated inputs through a target: counts, times, memory growth, and failed checks."""

from __future__ import annotations

import contextlib
import os
import pprint
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

TARGETS = ("http1", "http2", "websocket", "sse", "mqtt", "tcp", "tls", "pages", "plans", "thresholds", "runs")
#: CPU seconds for one input. The longest generated ones take some 0.1 s; with quadratic time they would take minutes.
BOUND_S = 2.0

#: How many inputs are kept that fail at one place in the code.
KEPT = 5


class Hang(BaseException):
    """An input took longer than BOUND_S; no ``except Exception`` catches it."""


class Target(NamedTuple):
    """``generate`` makes an input, a Python literal; ``check`` returns the kind of its outcome, or raises."""

    name: str
    generate: Callable[[Random], Any]
    check: Callable[[Any], str]


def target(name: str) -> Target:
    """The target of that name."""
    module = import_module(f"of_{name}")
    return Target(name, module.generate, module.check)


class Breach(NamedTuple):
    """An input that failed, where, and how."""

    where: str
    words: str
    case: Any


class Tally:
    """The results so far. Times are CPU seconds; ``rss``: the resident bytes after each tenth of the inputs."""

    def __init__(self, one: Target, inputs: int, found: Callable[[Breach], None]) -> None:
        self.target, self.inputs = one, inputs
        self.done, self.kinds, self.slowest_s = 0, Counter[str](), 0.0
        self.slowest: Any = None
        self.breaches = Counter[str]()
        self.rss: list[int] = []
        self._found = found
        self._marks = {max(1, inputs * tenth // 10) for tenth in range(1, 11)}

    def one(self, chance: Random) -> None:
        """Make an input and check it."""
        case = self.target.generate(chance)
        begin = time.process_time()
        try:
            kind = self.target.check(case)
        except (Exception, Hang) as error:
            kind = "BREACH"
            breach = Breach(_where(error), " ".join(f"{type(error).__name__}: {error}".split())[:300], case)
            self.breaches[breach.where] += 1
            if self.breaches[breach.where] <= KEPT:
                self._found(breach)
        took_s = time.process_time() - begin
        if took_s > self.slowest_s:
            self.slowest_s, self.slowest = took_s, case
        self.kinds[kind] += 1
        self.done += 1
        if self.done in self._marks:
            self.rss.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


@contextlib.contextmanager
def bounded() -> Iterator[Callable[[], None]]:
    """A timer of CPU time that raises :class:`Hang`; call the yielded function before each input."""

    def expired(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {BOUND_S:g} s of CPU for one input")

    before = signal.signal(signal.SIGPROF, expired)
    try:
        yield lambda: (signal.setitimer(signal.ITIMER_PROF, BOUND_S), None)[1]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def kept(folder: Path, name: str) -> Callable[[Breach], None]:
    """Write each breach as a literal into ``folder``."""

    def keep(breach: Breach) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob(f"{name}-*.py")))
        path = folder / f"{name}-{number}.py"
        path.write_text(f"# {breach.where}\n# {breach.words!a}\n{pprint.pformat(breach.case, width=130)}\n", "utf-8", "backslashreplace")
        print(f"  BREACH at {breach.where}: {ascii(breach.words)[:200]}\n    kept in {path}", flush=True)

    return keep


def _where(error: BaseException) -> str:
    """The line that raised, and our last line before it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "asyncli" in frame.filename or "fuzz" in frame.filename]
    return f"{type(error).__name__} {' < '.join(last[:-3:-1])}"
