"""Runs the first tutorial on a real nginx, with fewer connections, shorter phases and another port."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from documented import ROOT, blocks, commands
from programs import SHORT, Program, here, report, run

PAGE = ROOT / "docs" / "tutorial" / "ten-minutes.md"
_STATUS = re.compile(r"http://127\.0\.0\.1:\d+/nginx_status")


@contextmanager
def _lab(words: list[str], folder: Path) -> Iterator[dict[str, str]]:
    """Run the page's lab; yields what replaces the page's addresses and files. It must end with Ctrl-C."""
    with Program(folder, *("0" if one == "8080" else one for one in words), "-c", "1k", name="lab") as lab:
        said = lab.until(lambda: lab.out if "  try" in lab.out else "", "the lab's addresses")
        target, status = re.findall(r"http://\S+", said)[:2]
        (folder / "nginx.pid").write_text(re.findall(r"pid (\d+)", said)[0])
        yield {"http://127.0.0.1:8080/": target, "STATUS": status, "/run/nginx.pid": "nginx.pid", "50000": "200"}
        lab.signal(signal.SIGINT)
        assert lab.wait().status == 0


@pytest.mark.nginx
def test_its_commands_run_in_order(tmp_path: Path) -> None:
    calls = [call for block in blocks(PAGE) if block.language == "sh" for call in commands(block.text)]
    starts = [number for number, call in enumerate(calls) if call[0] == "lab"]
    for start, end in zip(starts, [*starts[1:], len(calls)], strict=True):
        with _lab(calls[start], tmp_path) as known:
            for call in calls[start + 1 : end]:
                words = [known.get(one, known["STATUS"] if _STATUS.fullmatch(one) else one) for one in call]
                soaks = words[0] == "soak"
                done = run(tmp_path, *words, *SHORT, "--hold", "0.3s") if soaks else here(tmp_path, *words)
                # On a busy machine asyncli may be late: status 4.
                assert done.status in (0, 4 if soaks else 0), (words, done)
    assert (len(starts), {*(call[0] for call in calls)}) == (2, {"--version", "lab", "check", "soak", "report", "explain"})
    assert [report(tmp_path, f"{name}.db")["connections"]["held"] for name in ("first", "root", "named")] == [200] * 3
    assert (tmp_path / "root.html").stat().st_size > 10_000
