"""What the build adds: asyncli/VERSION, which asyncli/version.py reads where there is no checkout, and manual pages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Made(BuildHookInterface):  # type: ignore[type-arg]
    """Nothing for an editable install: it is a checkout still, and changes with it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "VERSION"
        path.write_text(f"{self.metadata.version}\n", encoding="ascii")
        build_data["force_include"][str(path)] = "asyncli/VERSION"
        if self.target_name == "wheel" and self.metadata.name == "asyncli":
            pages = Path(self._folder.name, "man")
            subprocess.run([sys.executable, Path(self.root, "scripts/man"), pages, self.metadata.version], check=True)
            build_data["shared_data"] |= {str(page): f"share/man/man1/{page.name}" for page in sorted(pages.glob("*.1"))}
