"""The build writes its version into what it builds: asyncli/version.py reads it there, and asks git in a checkout alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class VersionFile(BuildHookInterface):  # type: ignore[type-arg]
    """Adds asyncli/VERSION to wheel and sdist; an editable install is a checkout still, and changes with it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            path = Path(self._folder.name) / "VERSION"
            path.write_text(f"{self.metadata.version}\n", encoding="ascii")
            build_data["force_include"][str(path)] = "asyncli/VERSION"
