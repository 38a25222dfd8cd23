from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncli.lab import compiler
from asyncli.model.errors import HostError


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build the C models in the common temporary folder: a test's own is removed after it."""
    with contextlib.suppress(HostError):
        compiler.build(Path(compiler.__file__).with_name("models.c"))


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder for each test, since labs of other tests use and clean up the common one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # nginx's and Apache's workers run as nobody
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
