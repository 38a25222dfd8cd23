"""Builds the lab's Java program at its first use with the host's Maven, and keeps it in the user's
cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from asyncli.lab.build_cache import BUILD_S, building, cache_folder
from asyncli.lab.executables import programs
from asyncli.model.errors import HostError
from asyncli.model.secret_variables import for_child

SOURCES = Path(__file__).with_name("java")
#: The class with the program.
MAIN = "NettyHttp"
_FILES = ("pom.xml", f"{MAIN}.java")
_INSTALL = "apt-get install default-jdk-headless maven"
# The oldest that runs the program: maven.compiler.release of pom.xml.
_OLDEST_JAVA = 11


class Java(NamedTuple):
    """The program ``java``, and its version as ``17.0.15``."""

    path: str
    version: str


def find_java(name: str) -> Java:
    """The host's Java. Raises :class:`HostError` without Java 11 or later."""
    for path, text in programs("-version", "java"):
        match = re.search(r'^\w+ version "(\d+)(\S*)"', text, re.MULTILINE)
        if match is not None and int(match[1]) >= _OLDEST_JAVA:
            return Java(path, match[1] + match[2])
    raise HostError(
        f"{name}: no Java {_OLDEST_JAVA} or later on this host; install it ({_INSTALL})"
    )


def locate(name: str) -> Path:
    """The folder of the program ``name``, which exists once it is built: its classes and jars."""
    digest = hashlib.sha256(b"\0".join((SOURCES / file).read_bytes() for file in _FILES))
    return cache_folder() / f"{name}-{digest.hexdigest()[:16]}"


def build(name: str) -> Path:
    """The folder of the program ``name``, built if it is missing. Raises :class:`HostError` without
    Maven, or with the first line of a build error.

    Its libraries come from the user's repository of Maven, in the versions of ``pom.xml``.
    """
    folder = locate(name)
    if not folder.is_dir():
        maven = _find_maven(name)
        with building(name, maven, folder, "Maven's settings.xml") as made:
            _run_maven(maven, name, made)
    return folder


def class_path(folder: Path) -> str:
    """The program's classes and jars, for ``java -cp``."""
    return f"{folder / 'classes'}{os.pathsep}{folder / 'jars' / '*'}"


def version_of(artifact: str) -> str:
    """A library's version in pom.xml, as ``4.1.128``."""
    pom = (SOURCES / "pom.xml").read_text(encoding="utf-8")
    match = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>([\d.]+\d)", pom)
    return match[1] if match else "unknown"


def _find_maven(name: str) -> str:
    """The path of the host's Maven. Raises :class:`HostError` without it."""
    for path, text in programs("--version", "mvn"):
        if "Apache Maven" in text:
            return path
    raise HostError(f"{name}: no Maven on this host to build it with; install it ({_INSTALL})")


def _run_maven(maven: str, name: str, folder: Path) -> None:
    """Build into ``folder``. Raises :class:`HostError` with the first error that Maven prints."""
    argv = [
        maven,
        *("--batch-mode", "--quiet", "--strict-checksums"),
        *("--file", str(SOURCES / "pom.xml")),
        f"-Dlab.folder={folder}",
        *("compile", "dependency:copy-dependencies"),
    ]
    done = subprocess.run(
        argv,
        cwd=folder.parent,
        env=for_child(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode == 0:
        return
    error = "it printed nothing"
    for line in (done.stdout + done.stderr).splitlines():
        if line.strip():
            error = line.removeprefix("[ERROR]").strip()
            break
    raise HostError(f"{name}: {maven} cannot build it: {error}; see Maven's settings.xml")
