"""The systemd units: systemd accepts every line, and the command that they start runs and stops as they say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Program, codes, report, require_whole, serving

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SERVICE = (CONFIGS / "asyncli-soak.service").read_text(encoding="utf-8")


def setting(name: str) -> str:
    """The last value of a key, with continuation lines joined (systemd.syntax(7))."""
    joined = SERVICE.replace("\\\n", " ")
    return re.findall(rf"^{name}=(.*)$", joined, re.MULTILINE)[-1].strip()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this host; apt-get install systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    # systemd-analyze wants the program to exist at the unit's path.
    names = ("asyncli-soak.service", "asyncli-soak.timer", "asyncli-agent.service")
    for name in names:
        unit = (CONFIGS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(unit.replace("/usr/local/bin/asyncli", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", *(tmp_path / name for name in names)], capture_output=True, text=True, check=False)
    # An unknown key is only a warning.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_unit_command_runs_and_its_stop_drains_and_reports(tmp_path: Path) -> None:
    with serving() as server:
        options = "-c 50 -k 4 --baseline 0.2 --residue 0.2"
        words = []
        for word in shlex.split(setting("ExecStart")):
            # A variable by itself is split into words, and $$ is $ (systemd.service(5), COMMAND LINES).
            if re.fullmatch(r"\$[A-Z_]+", word):
                words += {"$ASYNCLI_OPTIONS": options, "$ASYNCLI_URL": server.url}[word].split()
            else:
                words.append(word.replace("$$", "$"))
        assert words[0] == "/usr/local/bin/asyncli"
        with Program(tmp_path, *words[1:]) as program:
            program.until(lambda: '"phase":"hold"' in program.out, "the hold begins")
            (path,) = tmp_path.glob("asyncli-*.db")
            assert setting("KillMode") == "mixed"
            program.signal(getattr(signal, setting("KillSignal")))
            done = program.wait()
            program.until_gone()
    require_whole(done.status, report(tmp_path, path))
    assert path.name in done.err
    log = [json.loads(line) for line in done.out.splitlines()]
    assert any(line["event"] == "finding" and line["code"] == "hold_until" for line in log)
    summary = report(tmp_path, path)
    assert (summary["plan"]["hold_until"], summary["plan"]["keepalive_s"], summary["plan"]["timeout_s"]) == ("07:00", 4.0, 30.0)
    assert "stopped_by_user" in codes(summary)
