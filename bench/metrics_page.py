"""Measures what reading a page of metrics takes of a core: the names that rules want, all of it,
and by prometheus_client, if that is installed (pip install prometheus_client, in another venv).

    python bench/metrics_page.py [--rounds 300]

The page is that of a Go server with histograms of its routes: 600 lines, 50 kB.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable

from common import HERE, command, machine

from asyncli.collect.metric_values import PageValues
from asyncli.collect.metrics_page import parse_metrics

sys.path.insert(0, str(HERE.parent / "tests"))

from metrics_pages import GO, NODE

LINES = 600


def page() -> bytes:
    lines = [*GO.splitlines(), *NODE.splitlines()]
    route = 0
    while len(lines) < LINES:
        labels = f'code="200",method="GET",path="/api/v1/things/{route}",server="srv0"'
        for place in range(12):
            name = "http_request_duration_seconds_bucket"
            lines.append(f'{name}{{{labels},le="{0.001 * 2**place:g}"}} {17 * place}')
        route += 1
    return "\n".join(lines).encode() + b"\n"


def values(pages: PageValues, body: bytes) -> dict[str, float]:
    """What one reading of the page gives."""
    read = pages.wanted.parse(body)
    pages.recognise(read)
    return pages.runtime(read) | pages.page_counts(read)


def median_ms(read: Callable[[], object], rounds: int) -> float:
    took_ms = []
    for _ in range(rounds):
        begun = time.process_time_ns()
        read()
        took_ms.append((time.process_time_ns() - begun) / 1e6)
    return statistics.median(took_ms)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    body = page()
    pages = PageValues()
    wanted = pages.wanted
    print(f"{machine()}\n{command()}")
    lines = body.count(b"\n")
    print(f"page of {len(body):,} bytes, {lines:,} lines; CPU time, medians")
    print(f"  wanted names           {median_ms(lambda: wanted.parse(body), rounds):6.3f} ms")
    print(f"  the same, and values   {median_ms(lambda: values(pages, body), rounds):6.3f} ms")
    print(f"  all                    {median_ms(lambda: parse_metrics(body), rounds):6.3f} ms")
    try:
        theirs = importlib.import_module("prometheus_client.parser")
    except ModuleNotFoundError:
        print("  prometheus_client      not installed")
        return
    text = body.decode()
    took_ms = median_ms(lambda: list(theirs.text_string_to_metric_families(text)), rounds // 10)
    print(f"  prometheus_client      {took_ms:6.3f} ms")


if __name__ == "__main__":
    main()
