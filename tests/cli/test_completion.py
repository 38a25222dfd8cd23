"""TAB completion in real shells, with the scripts of ``asyncli completion``."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import here, until

from asyncli.cli.completion import SHELLS, offers
from asyncli.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
STARTS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "--no-config", "-i"]}
# Prints its arguments, so that a completed line can be read after Enter.
SAYS = '#!/bin/sh\n[ -z "$_ASYNCLI_COMPLETE" ] || exec {python} -m asyncli "$@"\nprintf "got:%s\\n" "$*"\n'
LINES = {
    "asyncli rep\tnig\t": "got:report night.db", "asyncli soak --plan ove\t": "got:soak --plan overnight", "asyncli soak --plan=ove\t": "got:soak --plan=overnight",
    "asyncli -c 5 --resi\t": "got:-c 5 --residue", "asyncli lab apache-p\t": "got:lab apache-prefork", "asyncli report sub\tthe\t": "got:report sub dir/then.db",
    "asyncli report --html=nigh\tl\t": "got:report --html=nightly.txt", "asyncli runs su\t": "got:runs sub dir",
}


def offered(*words: str) -> list[str]:
    return [line.split("\t")[1] for line in offers(cli, list(words))]


def test_completes_commands_flags_and_names() -> None:
    assert offered("") == list(COMMANDS)
    assert {"-c", "--hold"} <= set(offered("-"))
    assert offered("-c", "5", "--hol") == offered("soak", "--hol") == ["--hold"]
    assert offered("soak", "--h2-heartbeat", "") == ["ping", "head"]
    assert offered("bench", "--plan", "") == ["*.toml", "bench"]
    assert offered("soak", "--fail-if", "lo") == ["lost", "lost_with_worker"]
    assert offered("soak", "--fail-if", "'lo") == ["lost", "lost_with_worker"]
    assert "connections.deaths." in offered("soak", "--fail-if", "connections.d")
    assert offered("experiment", "hol") == ["holding"]
    assert offered("explain", "server_processes_u") == ["server_processes_unknown"]
    assert [offered(one, "") for one in ("report", "runs", "lab")][:2] == [["*.db"], ["*/"]]


def test_completion_imports_nothing_heavy() -> None:
    code = "import sys; from asyncli.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    for words in (["soak", "--"], ["soak", "--fail-if", "lo"], ["bench", "--fail-if", "la"], ["explain", "co"]):
        done = subprocess.run([sys.executable, "-c", code, *words], env={**os.environ, "_ASYNCLI_COMPLETE": "1"}, capture_output=True, text=True, check=True)
        assert {"aiohttp", "scipy", "numpy", "rich", "sqlite3", "asyncio"} & set(done.stdout.splitlines()[-1].split()) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_a_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (tmp_path / "sub dir").mkdir()
    for name in ("night.db", "nightly.txt", "sub dir/then.db", "sub dir/there.txt", "bin", "script"):
        (tmp_path / name).touch() if name != "bin" else (tmp_path / name).mkdir()
    (tmp_path / "script").write_text(here(tmp_path, "completion", shell).out)
    program = tmp_path / "bin/asyncli"
    program.write_text(SAYS.format(python=sys.executable))
    program.chmod(0o755)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TERM": "dumb"}
        os.execvp(shell, STARTS[shell])
    said = b""

    def heard(text: str) -> bool:
        nonlocal said
        if select.select([terminal], [], [], 0.05)[0]:
            said += os.read(terminal, 65536)
        return text.encode() in said

    try:
        begins = "autoload -U compinit && compinit -D -u; " if shell == "zsh" else ""
        os.write(terminal, f"{begins}. ./script; echo re''ady\r".encode())
        until(lambda: heard("ready"), "the shell")
        for line, result in LINES.items():
            said = b""
            for part in line.split("\t"):
                os.write(terminal, part.encode() + (b"\t" if part else b"\r"))
            until(lambda result=result: heard(result), f"{line!r} in {shell}: {said!r}")  # type: ignore[misc]
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
