"""Python's garbage collector, while a night is read and reported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected(*, at_last: bool = False) -> Iterator[None]:
    """Pause the garbage collector: it would look at a night's half a million objects again and
    again, and free none of them. What has no cycles is freed all the same.

    ``at_last``: the process ends after this, so what is left then is never looked at again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if at_last:
            gc.freeze()
        if was_on:
            gc.enable()
