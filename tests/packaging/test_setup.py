"""scripts/setup, with programs of its own in place of Python and nginx."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"
PYTHON = '''#!/bin/sh
case "$*" in "-m venv"*) mkdir -p .venv/bin && ln -s "$0" .venv/bin/python ;; "-m pip"*|-c*) ;; esac
'''


@pytest.mark.skipif(not SETUP.exists(), reason="takes a checkout")
@pytest.mark.parametrize(("user", "mode", "told"), [("0", 0o700, True), ("0", 0o755, False), ("1000", 0o700, False)])
def test_it_says_if_only_root_can_run_what_it_made(user: str, mode: int, told: bool, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup").write_bytes(SETUP.read_bytes())
    (tmp_path / "pyproject.toml").touch()
    home = tmp_path / "home"
    home.mkdir()
    for name, text in (("python3", PYTHON), ("nginx", ""), ("id", f"#!/bin/sh\necho {user}\n")):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    home.chmod(mode)
    done = subprocess.run(["sh", "scripts/setup"], cwd=tmp_path, env={"HOME": str(home), "PATH": f"{home}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert (f"in {home}" in done.stdout) is told
