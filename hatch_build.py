"""The build's hook: manual pages, made from the commands, go into the wheel's share/man/man1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPages(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root, "build/man")
        subprocess.run([sys.executable, Path(self.root, "scripts/man"), folder, self.metadata.version], check=True)
        build_data["shared_data"] |= {str(page): f"share/man/man1/{page.name}" for page in sorted(folder.glob("*.1"))}
