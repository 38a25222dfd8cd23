"""asyncli's version, in PEP 440's format. The build calls it too, and stores the result in the
package (packaging/hatch_build.py).
"""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).parent


def version() -> str:
    """The version: a built package's own; a checkout's tag with the number of commits since
    ("0.2.0+5.g1a2b3c4").

    If git finds no tag (a shallow clone): the changelog's newest release with the commit; without
    git: that release.
    """
    try:
        return (_PACKAGE / "VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return described(
            (_PACKAGE.parent / "CHANGELOG.md").read_text(encoding="utf-8"),
            _described(_PACKAGE.parent),
        )


def described(changelog: str, description: str) -> str:
    """The version of a checkout from its changelog and the output of ``git describe --tags --long
    --always``.
    """
    newest = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    match = re.fullmatch(
        r"(?:v(?P<release>.+)-(?P<commits>\d+)-g)?(?P<commit>[0-9a-f]{7,})", description
    )
    release = "0"
    if newest is not None:
        release = newest[1]
    if match is None:
        return release
    if match["release"]:
        release = match["release"]
    if match["commits"] == "0":
        return release
    if match["commits"]:
        return f"{release}+{match['commits']}.g{match['commit']}"
    return f"{release}+g{match['commit']}"


def _described(root: Path) -> str:
    import subprocess

    # A named folder: git would look for one in the folders above too, and refuse another user's.
    git = [
        "git",
        f"--git-dir={root / '.git'}",
        "describe",
        "--tags",
        "--long",
        "--always",
        "--match",
        "v[0-9]*",
    ]
    try:
        return subprocess.run(
            git, capture_output=True, text=True, timeout=5, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
