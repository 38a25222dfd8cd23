"""Builds the lab's Go programs at their first use with the host's Go, and keeps them in the user's
cache.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from asyncli.lab.build_cache import BUILD_S, building, cache_folder
from asyncli.lab.executables import programs
from asyncli.model.errors import HostError
from asyncli.model.secret_variables import for_child

SOURCES = Path(__file__).with_name("go")


class Built(NamedTuple):
    """A program, and the Go that built it, as ``go1.26.8``."""

    program: Path
    go: str


def build(name: str) -> Built:
    """The program of ``go/NAME``. Raises :class:`HostError` without Go 1.20 or later, or with the
    first line of a build error.

    Its libraries come from the user's module proxy, in the versions and with the checksums of
    ``go.sum``.
    """
    path, built = locate(name)
    if not built.program.is_file():
        _build(path, name, built.program)
    return built


def locate(name: str) -> tuple[str, Built]:
    """The path of the host's Go, and the program that it has built or would build."""
    path, version = _find_go(name)
    common = ("go.mod", "go.sum", "metrics/metrics.go")
    sources = [SOURCES / source for source in (*common, f"{name}/main.go")]
    texts = [source.read_bytes() for source in sources]
    digest = hashlib.sha256(b"\0".join([version.encode(), *texts])).hexdigest()[:16]
    # A report calls a server by its file.
    return path, Built(cache_folder() / digest / name, version)


def _find_go(name: str) -> tuple[str, str]:
    """Path and version of the host's Go. Raises :class:`HostError` without one."""
    for path, text in programs("version", "go"):
        match = re.search(r"\b(go1\.\S+)", text)
        if match is not None:
            return path, match[1]
    raise HostError(
        f"{name}: no Go on this host; install it (apt-get install golang-go, or see "
        "go.dev/doc/install)"
    )


def version_of(module: str) -> str:
    """A library's version in go.mod."""
    match = re.search(
        rf"/{re.escape(module)} v(\S+)", (SOURCES / "go.mod").read_text(encoding="utf-8")
    )
    return match[1] if match else "unknown"


def _build(go: str, name: str, program: Path) -> None:
    env = {**for_child(), "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    with building(name, go, program, "GOPROXY") as made:
        argv = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", str(made), f"./{name}"]
        done = subprocess.run(
            argv,
            cwd=SOURCES,
            env=env,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        if done.returncode:
            # A line with # names the package.
            error = next(
                (line for line in done.stderr.splitlines() if not line.startswith("#")),
                "it printed nothing",
            )
            raise HostError(f"{name}: {go} cannot build it: {error}; see GOPROXY, and Go's version")
