"""What runtimes print after a collection."""

from __future__ import annotations

import pytest

from asyncli.collect.forced_collection import by_runtime, heap_of_go, heap_of_jvm
from asyncli.model.errors import PeerError

HISTOGRAM = b"""4711:
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:            40       20971520  [B (java.base@17.0.15)
   2:            12       42  Total (an odd name)
Total         60485       23845168
"""


@pytest.mark.parametrize(
    ("text", "live"), [(HISTOGRAM, 23_845_168.0), (HISTOGRAM[:-40], None), (b"4711:\nCommand failed\n", None), (b"", None)]
)
def test_the_heap_of_a_jvm(text: bytes, live: float | None) -> None:
    assert heap_of_jvm(text) == live


def test_the_heap_of_go() -> None:
    assert heap_of_go(b"heap profile: 1: 2 [3: 4]\n# runtime.MemStats\n# Alloc = 5\n# HeapAlloc = 317856\n# HeapSys = 9\n") == 317_856.0
    assert heap_of_go(b"a page of something else") is None


@pytest.mark.parametrize(("kind", "says"), [("go", "debug/pprof/heap"), ("python", "is python"), ("", "is unknown")])
def test_what_cannot_be_asked_says_how(kind: str, says: str) -> None:
    with pytest.raises(PeerError, match=says):
        by_runtime(kind, 1)
