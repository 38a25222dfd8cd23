"""The version of a checkout from its tags, and of a built package."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

import asyncli

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-24\n\n## [0.1.0] - 2026-01-01\n"


def version_in(root: Path) -> str:
    found: str = runpy.run_path(str(root / "asyncli" / "version.py"))["version"]()
    return found


def test_a_version_is_that_of_the_tag_or_of_the_changelog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit() -> str:
        git("commit", "-q", "--allow-empty", "-m", "one")
        return git("rev-parse", "--short", "HEAD")

    (tmp_path / "asyncli").mkdir()
    shutil.copy(Path(asyncli.__file__).with_name("version.py"), tmp_path / "asyncli")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    assert version_in(tmp_path) == "0.2.0"  # an archive
    git("init", "-q")
    assert version_in(tmp_path) == "0.2.0"  # nothing was committed
    first = commit()
    assert version_in(tmp_path) == f"0.2.0+g{first}"
    git("tag", "other")
    git("tag", "v0.3.0rc1")
    assert version_in(tmp_path) == "0.3.0rc1"
    later = commit()
    assert version_in(tmp_path) == f"0.3.0rc1+1.g{later}"
    # A clone of another user: git's own tests say so by this variable.
    for name, value in (("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1"), ("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_SYSTEM", os.devnull)):
        monkeypatch.setenv(name, value)
    assert version_in(tmp_path) == f"0.3.0rc1+1.g{later}"
    (tmp_path / "asyncli" / "VERSION").write_text("0.4.0\n", encoding="ascii")
    assert version_in(tmp_path) == "0.4.0"


def test_a_citation_names_the_newest_release() -> None:
    root = Path(asyncli.__file__).parents[1]
    newest = re.search(r"^## \[(\d[^\]]*)\] - (\S+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert newest is not None
    assert [re.findall(rf"^{key}: \"?([^\"\n]+)", citation, re.MULTILINE) for key in ("version", "date-released")] == [[one] for one in newest.groups()]
