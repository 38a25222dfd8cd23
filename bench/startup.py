"""How long asyncli takes to start: whole processes, in turns, the least and the median of each.

    python bench/startup.py VENV/bin [--rounds 40]

Measure an environment into which pip installed a wheel: pip compiles at installation, a checkout asks git for its version.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    python = str(options.programs / "python")
    asyncli = str(options.programs / "asyncli")
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "python -c 'import asyncli'": [python, "-c", "import asyncli"],
        "asyncli --version": [asyncli, "--version"],
        "asyncli --help": [asyncli, "--help"],
        "asyncli soak --help": [asyncli, "soak", "--help"],
        "asyncli report --help": [asyncli, "report", "--help"],
    }
    times_ms: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            began_s = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times_ms[name].append((time.perf_counter() - began_s) * 1e3)
    print("| command | least | median |\n|---|---|---|")
    for name, times in times_ms.items():
        print(f"| `{name}` | {min(times):.0f} ms | {statistics.median(times):.0f} ms |")


if __name__ == "__main__":
    main()
