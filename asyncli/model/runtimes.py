"""The runtime that a server's programs run on, as the run file and the JSON have it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncli.model.text import tidy
from asyncli.model.units import format_bytes

#: The name of each kind in sentences.
_NAMES = {
    "go": "Go",
    "node": "Node",
    "deno": "Deno",
    "bun": "Bun",
    "jvm": "Java",
    "dotnet": ".NET",
    "python": "Python",
    "ruby": "Ruby",
    "beam": "Erlang (erts)",
    "php": "PHP",
}


class Runtime(msgspec.Struct, frozen=True):
    """``kind``: a key of the names above, or "" where no runtime is known; a later version of
    asyncli may write another one. ``version``: as the runtime has it, or "".
    """

    kind: str = ""
    version: str = ""
    #: A tracing collector frees its heap: resident memory has garbage in it, and room for more.
    collected: bool = False
    #: Go's GOGC, in percent; -1: off. 100 where it is not set. None: unknown.
    gogc: int | None = None
    #: The limit that it was started with: GOMEMLIMIT of Go, which is a soft one, -Xmx of Java,
    #: --max-old-space-size of Node. None: none, or unknown.
    heap_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        tidy(self)

    @classmethod
    def of(cls, facts: object) -> Runtime:
        """The runtime in a run file's facts of the server; an unknown one if it has none, or no
        such.
        """
        try:
            return msgspec.convert(facts, cls)
        except msgspec.ValidationError:
            return cls()

    @property
    def title(self) -> str:
        """``Go 1.26``; "": unknown."""
        return f"{_NAMES.get(self.kind, self.kind)} {self.version}".strip()

    @property
    def words(self) -> str:
        """:attr:`title` with its settings: ``Go 1.26, GOGC=100, heap limit 2.1 GB``."""
        words = [self.title or "unknown"]
        if self.gogc == -1:
            words.append("GOGC=off")
        elif self.gogc is not None:
            words.append(f"GOGC={self.gogc}")
        if self.heap_limit_bytes is not None:
            words.append(f"heap limit {format_bytes(self.heap_limit_bytes)}")
        return ", ".join(words)

    def document(self) -> dict[str, Any]:
        """The runtime as plain data, for the run file."""
        return msgspec.structs.asdict(self)
