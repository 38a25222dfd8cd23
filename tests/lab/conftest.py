from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own for what is temporary: in the common one labs of other tests make theirs, and sweep the dead."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # nginx's and Apache's workers are nobody
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
