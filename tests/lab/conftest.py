from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncli.errors import HostError
from asyncli.lab import compiler


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """The models in C, in the common temporary folder: that of a test is gone after it."""
    with contextlib.suppress(HostError):
        compiler.build(Path(compiler.__file__).with_name("models.c"))


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own for what is temporary: in the common one labs of other tests make theirs, and sweep the dead."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # nginx's and Apache's workers are nobody
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
