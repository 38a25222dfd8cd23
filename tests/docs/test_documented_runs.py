"""Runs the commands of the README and the documentation in order, on real servers, with smaller numbers and other ports."""

from __future__ import annotations

import lzma
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from documented import PAGES, ROOT, blocks, commands
from programs import SHORT, Program, here, report, run

#: Commands that do not run here -> why not.
ELSEWHERE = {
    r"--at 50% storm": "in so short a hold its clients are not back at the end; tests/integration/test_storm.py",
    r"(^| )[A-Z]{3,}(\.db|/\S+)?( |$)|\.\.\.|\[": "a placeholder for the reader's value",
    r"(^| )(soak|watch|check|bench|report|runs|agent|capacity|demo|explain|lab|experiment atlas|compare|completion)$": "names a command in a sentence",
    r"10\.0\.0\.|\$|example\.org|shop\.example|scheduler": "needs other hosts; tests/cluster, tests/integration/test_agent.py",
    r"^(experiment|demo) ": "takes minutes; tests/experiments, tests/lab",
    r"^capacity ": "takes a minute; tests/integration/test_capacity_of_servers.py",
    r"^mark ": "needs a run that lasts; tests/cli/test_marked_soak.py",
    r"--baseline-run": "needs an earlier run; tests/integration/test_early_decision.py",
    r"run nginx -s reload": "needs an nginx of the distribution; tests/integration/test_storm.py",
    r"--resume": "needs a run that was killed; tests/integration/test_killed_and_interrupted.py",
    r"(tcp|mqtt|ws)://|/log$|--connect-to|^lab (nchan|nginx-proxy|mosquitto)$": "needs a server of that protocol; tests/integration",
    r"--collect|--server-metrics|^lab go-http": "needs a server whose heap is collected; tests/integration/test_forced_collections.py, tests/lab",
    r"--http2|--proxy-protocol": "needs a server set up for it; tests/integration/test_http2_soaked.py, test_proxy_protocol.py",
    r"^soak --hold forever$|^watch --web$": "never ends",
    r"^runs runs/$": "needs a folder of runs; tests/docs/test_your_runs.py",
}  # fmt: skip
#: The values of these options.
_SMALLER = {"-c": "50", "-d": "0.3s", "--on-finish": "true"}
STORED = ("clean", "plateaus", "pools", "agent")


def _calls(page: Path) -> list[list[str]]:
    shown = [one for one in blocks(page) if one.language in ("", "sh", "inline")]
    return [call for block in shown for call in commands(block.text)]


RUN = {page: [one for one in _calls(page) if not any(re.search(why, " ".join(one)) for why in ELSEWHERE)] for page in PAGES}


def _lab(words: list[str], folder: Path, stack: ExitStack) -> dict[str, str]:
    """Start the page's lab, which must end with Ctrl-C; returns what replaces the page's addresses and files."""
    words = ["0" if before == "--port" else "1k" if before == "-c" else one for before, one in zip(["", *words], words, strict=False)]
    lab = stack.enter_context(Program(folder, *words, name="lab"))
    said = lab.until(lambda: lab.out if "  try" in lab.out else "", "the lab's addresses")
    (folder / "nginx.pid").write_text(re.findall(r"pid (\d+)", said)[0])
    def ended() -> None:
        lab.signal(signal.SIGINT)
        assert lab.wait().status == 0

    stack.callback(ended)
    target, status = (*re.findall(r"https?://\S+", said), "")[:2]
    return {"http:/": target, "http:/nginx_status": status, "/run/nginx.pid": "nginx.pid", "authority.pem": "".join(re.findall(r"--ca (\S+)", said))}


@pytest.mark.nginx
@pytest.mark.parametrize("page", [page for page, calls in RUN.items() if calls], ids=lambda page: str(page.relative_to(ROOT)))
def test_its_commands_run(page: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        known: dict[str, str] = {}
        soaks: list[tuple[list[str], Program]] = []
        for number, call in enumerate([*RUN[page], ["--version"]]):
            name = "soak" if call[0] in ("-c", "soak") else call[0]
            if name in ("lab", "--version") or {one for one in call if one.endswith(".db")} & {one for words, _ in soaks for one in words}:
                _await(soaks, tmp_path)
            if name == "lab" or (not known and name in ("soak", "check", "bench")):
                stack.close()
                known = _lab(call if name == "lab" else ["lab", "nginx"], tmp_path, stack)
            if name == "lab":
                continue
            words = [known.get(re.sub(r"^https?://127\.0\.0\.1:\d+/", "http:/", one), one) for one in call]
            words = [_SMALLER.get(before, one) for before, one in zip(["", *words], words, strict=False)]
            if name == "soak":
                words += [*SHORT, "-c", "50", "--ramp", "1k/s", "--hold", "0.3s", *([] if "--out" in words else ["--out", f"{number}.db"])]
                soaks.append((words, stack.enter_context(Program(tmp_path, *words, name=f"soak-{number}"))))
                continue
            for stored, one in zip(STORED, (one for one in words if one.endswith(".db") and not (tmp_path / one).exists()), strict=False):
                (tmp_path / one).write_bytes(lzma.decompress((ROOT / "tests" / "golden" / f"{stored}.db.xz").read_bytes()))
            done = run(tmp_path, *words) if name == "bench" else here(tmp_path, *words)
            assert done.status in (0, 4 if name == "bench" else 0), (words, done)


def _await(soaks: list[tuple[list[str], Program]], folder: Path) -> None:
    """Soaks that follow one another on a page run at the same time; so asyncli may be late: status 4."""
    while soaks:
        words, program = soaks.pop()
        assert program.wait().status in (0, 4), (words, program.wait())
        assert report(folder, words[words.index("--out") + 1])["connections"]["held"] == 50


def test_what_does_not_run_exists_and_most_runs() -> None:
    every = [" ".join(call) for page in PAGES for call in _calls(page)]
    assert [why for why in ELSEWHERE if not any(re.search(why, one) for one in every)] == []
    assert sum(map(len, RUN.values())) > 30
