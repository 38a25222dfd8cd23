"""Adds to a build: asyncli/VERSION, which asyncli/version.py reads outside a checkout, the manual
pages, and the modules and configurations of asyncli-light.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Made(BuildHookInterface):  # type: ignore[type-arg]
    """Adds nothing to an editable install, whose version is that of its checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "VERSION"
        path.write_text(f"{self.metadata.version}\n", encoding="ascii")
        build_data["force_include"][str(path)] = "asyncli/VERSION"
        if self.metadata.name == "asyncli-light":
            package = Path(self.root, "../../asyncli")
            for module in sorted(package.rglob("*")):
                place = module.relative_to(package)
                if module.is_file() and "__pycache__" not in place.parts and _is_of_light(place):
                    build_data["force_include"][str(module)] = f"asyncli/{place}"
            for name in _CONFIGS_OF_LIGHT:
                config = Path(self.root, "../../configs", name)
                build_data["force_include"][str(config)] = f"asyncli/_configs/{config.name}"
        if self.target_name == "wheel" and self.metadata.name == "asyncli":
            pages = Path(self._folder.name, "man")
            script = Path(self.root, "scripts/man")
            command = [sys.executable, script, pages, self.metadata.version]
            subprocess.run(command, check=True)
            for page in sorted(pages.glob("*.1")):
                build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"


# What needs NumPy, SciPy or Matplotlib, which asyncli-light leaves out, and what only that uses;
# the lab's servers but for nginx and the built-in one; the pages of runs and of folders; and the
# agent, which has its own package.
_NOT_OF_LIGHT = (
    "experiments",
    "lab/go",
    "lab/java",
    "live/assets",
    "report/figures",
    "report/templates",
)
_FILES_NOT_OF_LIGHT = (
    "agent/buffer.py",
    "agent/exposition.py",
    "agent/lease.py",
    "agent/server.py",
    "analysis/sizing.py",
    "analysis/storm_fit.py",
    "analysis/storm_forecast.py",
    "analysis/storm_pace.py",
    "api.py",
    "app/predicted_storm.py",
    "cli/agent.py",
    "cli/compare.py",
    "cli/experiment.py",
    "cli/size.py",
    "cli/storm.py",
    "core/storm.py",
    "engine/sim.py",
    "findings/experiment.py",
    "lab/apache.py",
    "lab/build_cache.py",
    "lab/compiler.py",
    "lab/golang.py",
    "lab/java.py",
    "lab/libraries.py",
    "lab/line.c",
    "lab/line.py",
    "lab/models.c",
    "lab/models.py",
    "lab/network.py",
    "lab/node_http.js",
    "lab/node_metrics.js",
    "lab/node_server.js",
    "lab/node_ws.js",
    "lab/packaged_servers.py",
    "lab/proxies.py",
    "lab/python_servers.py",
    "live/folder_server.py",
    "live/open_runs.py",
    "live/run_list.py",
    "notebook.py",
    "report/comparison_report.py",
    "report/differences.py",
    "report/experiment_report.py",
    "report/html.py",
    "report/size_report.py",
    "report/storm_report.py",
    "report/tables.py",
)

# Those of its commands and servers.
_CONFIGS_OF_LIGHT = (
    "100k.toml",
    "asyncli-soak.service",
    "asyncli-soak.timer",
    "bench.toml",
    "nginx.conf",
    "overnight.toml",
    "smoke.toml",
)


def _is_of_light(place: Path) -> bool:
    """Whether a file of the package is a part of asyncli-light, which refuses the commands that
    need the others.
    """
    path = place.as_posix()
    if path in _FILES_NOT_OF_LIGHT:
        return False
    if place.name == "__init__.py":
        return True
    return not any(path.startswith(f"{folder}/") for folder in _NOT_OF_LIGHT)
