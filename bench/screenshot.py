"""Runs a command in tmux, captures its screen, and writes it as SVG.

    python bench/screenshot.py docs/demo.svg --at 95 --size 96x24 -- asyncli demo
    python bench/screenshot.py docs/report.svg --at end --size 96x60 -- asyncli report RUN.db

Needs tmux. The picture has only text and shapes: it loads no fonts.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text


def tmux(*words: str) -> str:
    return subprocess.run(
        ["tmux", "-L", "asyncli-screenshot", *words], check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("picture", type=Path)
    parser.add_argument(
        "--at",
        default="end",
        help="seconds after the start, or 'end' for when the command has ended",
    )
    parser.add_argument("--size", default="96x24")
    parser.add_argument("--wait", action="store_true", help="let the command end before leaving")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    done = options.picture.with_suffix(".done").absolute()
    done.unlink(missing_ok=True)
    line = (
        f"TERM=xterm-256color COLORTERM=truecolor {shlex.join(options.command)}; touch "
        f"{shlex.quote(str(done))}; sleep 600"
    )
    tmux("new-session", "-d", "-s", "s", "-x", str(width), "-y", str(height), line)
    try:
        if options.at == "end":
            while not done.exists():
                time.sleep(0.2)
            time.sleep(0.5)
        else:
            time.sleep(float(options.at))
        screen = tmux("capture-pane", "-e", "-p", "-t", "s").rstrip("\n")
        while options.wait and not done.exists():
            time.sleep(0.2)
    finally:
        tmux("kill-server")
        done.unlink(missing_ok=True)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), soft_wrap=True)
    svg = console.export_svg(title=shlex.join(options.command))
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "ui-monospace, Menlo, Consolas"
    )
    options.picture.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
