"""Fuzzes the parsers of untrusted input: responses, status pages, plans, limits, run files.

    python bench/fuzz.py [TARGET...] [--inputs 1000000] [--seed 1] [--keep FOLDER] [--guided]

Targets: http1, http2, websocket, sse, mqtt, tcp, tls, pages, plans, thresholds, runs; default: all,
each in its own process, --jobs at once. The generators and the invariants are in tests/fuzz/. For
each it prints: inputs, seconds (and CPU seconds), inputs a second, kinds of outcome, the slowest
input (CPU time with checks), and the resident memory after each tenth of the inputs. An input that
breaks an invariant is saved as a Python literal in FOLDER, at most five per place in the code, and
the exit status is 1.

--guided: atheris (pip install atheris) guides the same generators by the coverage of asyncli's
code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from drive import TARGETS, Tally, bounded, kept, target


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"))
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if len(options.targets) == 1:
        return (guided if options.guided else seeded)(options)
    # The slowest first.
    names = sorted(options.targets or TARGETS, key=("runs", "http1").__contains__, reverse=True)
    flags = [
        "--inputs",
        str(options.inputs),
        "--seed",
        str(options.seed),
        "--keep",
        str(options.keep),
        *(["--guided"] if options.guided else []),
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(
            lambda name: (
                subprocess.run([sys.executable, __file__, name, *flags], check=False).returncode
            ),
            names,
        )
        return max(done)


def seeded(options: argparse.Namespace) -> int:
    """Run inputs from one seed in this process; returns the exit status."""
    (name,) = options.targets
    tally = Tally(target(name), options.inputs, kept(options.keep, name))
    chance = Random(options.seed)
    begin = time.monotonic()
    with bounded() as clock:
        for _ in range(options.inputs):
            clock()
            tally.one(chance)
    return tell(tally, time.monotonic() - begin, f"seed {options.seed}")


def guided(options: argparse.Namespace) -> int:
    """Run inputs guided by coverage. atheris does not return, so the last input ends the process."""
    import atheris
    from chance import FromBytes
    from scratch import clean

    (name,) = options.targets
    options.keep.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["asyncli"]):
        tally = Tally(target(name), options.inputs, kept(options.keep, name))
    begin = time.monotonic()

    def one(data: bytes) -> None:
        tally.one(FromBytes(data))
        if tally.done >= options.inputs:
            status = tell(tally, time.monotonic() - begin, f"guided, seed {options.seed}")
            clean()
            os._exit(status)

    atheris.Setup(
        [
            sys.argv[0],
            f"-seed={options.seed}",
            "-max_len=512",
            "-verbosity=0",
            "-timeout=20",
            f"-artifact_prefix={options.keep}/",
        ],
        one,
    )
    atheris.Fuzz()
    return 1


def tell(tally: Tally, took_s: float, how: str) -> int:
    """Print the result; returns the exit status."""
    lines = [
        f"{tally.target.name} ({how}): {tally.done:,} inputs in {took_s:.0f} s "
        f"({time.process_time():.0f} of CPU), {tally.done / took_s:,.0f}/s"
    ]
    lines += [f"  {count:>11,}  {kind}" for kind, count in tally.kinds.most_common()]
    shown = ascii(tally.slowest)
    lines.append(
        f"  slowest: {tally.slowest_s * 1000:.1f} ms, "
        f"{shown[:100]}{f'... ({len(shown):,} characters)' if len(shown) > 100 else ''}"
    )
    lines.append(
        f"  resident after each tenth: {' '.join(f'{size / 1e6:.1f}' for size in tally.rss)} MB"
    )
    print("\n".join(lines), flush=True)
    return 1 if tally.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
