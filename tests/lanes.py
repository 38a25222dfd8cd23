"""Runs a file's tests, which mostly wait, in threads: a lane is a thread that runs those with one shared resource in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Running = dict[str, "Future[None]"]


class Lanes:
    """``@lanes(shared)`` above ``def test_x(folder, resource)`` adds the test to the lane of the context manager ``shared``, which is
    entered once. Tests run in the file's order. The module's fixture ``running`` is :meth:`start`."""

    def __init__(self) -> None:
        self._lanes: dict[Any, dict[str, Callable[[Path, Any], None]]] = {}

    def __call__(self, shared: Callable[[Path], AbstractContextManager[T]]) -> Callable[[Callable[[Path, T], None]], Callable[[Running], None]]:
        def register(body: Callable[[Path, T], None]) -> Callable[[Running], None]:
            self._lanes.setdefault(shared, {})[body.__name__] = body

            def test(running: Running) -> None:
                running[body.__name__].result()

            test.__name__, test.__doc__ = body.__name__, body.__doc__
            return test

        return register

    def start(self, request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[Running]:
        """Start the selected tests, each lane in its thread."""
        wanted = {item.name for item in request.session.items if item.path == request.path}
        running: Running = {}
        with ThreadPoolExecutor(max(1, len(self._lanes))) as pool:
            for shared, bodies in self._lanes.items():
                mine = {name: (body, Future[None](), factory.mktemp(name)) for name, body in bodies.items() if name in wanted}
                if mine:
                    pool.submit(_run, shared, mine, factory.mktemp("lane"))
                    running |= {name: future for name, (_, future, _) in mine.items()}
            yield running
            for future in running.values():
                future.cancel()


def _run(shared: Any, mine: dict[str, tuple[Any, Future[None], Path]], folder: Path) -> None:
    try:
        with shared(folder) as thing:
            for body, future, own in mine.values():
                if future.set_running_or_notify_cancel():
                    try:
                        body(own, thing)
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(None)
    except BaseException as error:
        for _, future, _ in mine.values():
            if not future.done():
                future.set_exception(error)
        raise
