"""Runs the GitHub Action's script as a runner does, and linters on the workflows and the Dockerfile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from programs import SHORT
from provoked import an_nginx

import asyncli

ROOT = Path(asyncli.__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
PATHS = f"{PROGRAMS}:{os.environ['PATH']}"


class Ran(NamedTuple):
    status: int
    err: str
    summary: str
    outputs: str
    results: Path


def act(folder: Path, **inputs: str) -> Ran:
    folder.mkdir()
    names = ("URLS", "PLAN", "ARGS", "FAIL_IF", "BASELINE_RUN")
    own = {"RESULTS": str(folder / "results"), "ASYNCLI": str(PROGRAMS / "asyncli")}
    given = {**dict.fromkeys(names, ""), **own, **inputs}
    files = {name: str(folder / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    script = ROOT / "packaging" / "action.sh"
    done = subprocess.run([script], cwd=folder, env={**os.environ, **given, **files}, capture_output=True, text=True, check=False)
    summary, outputs = (Path(file).read_text(encoding="utf-8") for file in files.values())
    return Ran(done.returncode, done.stderr, summary, outputs, folder / "results")


@pytest.mark.nginx
def test_the_action_ends_as_its_soak_does_and_keeps_the_results(tmp_path: Path) -> None:
    short = f"-c 20 --hold 1s {' '.join(SHORT)} --header 'X-Words: $(touch it) `touch it`'"
    with an_nginx() as nginx, ThreadPoolExecutor() as pool:
        failing = pool.submit(act, tmp_path / "failed", URLS=nginx.url, ARGS=short, FAIL_IF="lost > 0\n\nconnections.held < 21\n")
        refused = act(tmp_path / "refused", URLS=nginx.url, ARGS="--nonesuch", PLAN="smoke")
        failed = failing.result()
    assert [(ran.status, ran.outputs) for ran in (failed, refused)] == [(99, "verdict=failed\n"), (2, "verdict=\n")]
    run = json.loads((failed.results / "run.json").read_text(encoding="utf-8"))
    assert [limit["kept"] for limit in run["limits"]] == [True, False]
    assert "**FAILED**" in failed.summary
    assert "crossed" in failed.summary
    assert ET.parse(failed.results / "junit.xml").getroot().get("failures") != "0"
    assert (failed.results / "report.html").stat().st_size > 10_000
    assert refused.err
    assert refused.err.strip() in refused.summary
    assert not list(tmp_path.rglob("it"))
    uploaded = [path for path in failed.results.rglob("*") if path.is_file()]
    assert sorted(path.name for path in uploaded) == ["errors.txt", "junit.xml", "report.html", "report.txt", "run.db", "run.json"]
    assert not [path for path in uploaded if b"touch it" in path.read_bytes()]


@pytest.mark.parametrize(
    "inputs",
    [
        {"URLS": "http://127.0.0.1:9/ --on-finish=touch${IFS}it"},
        {"URLS": "http://127.0.0.1:9/ --on-finish touch\nit"},
        {"URLS": "--on-finish=touch${IFS}it http://127.0.0.1:9/"},
        {"URLS": "http://127.0.0.1:9/", "PLAN": "--on-finish=touch${IFS}it"},
        {"URLS": "http://127.0.0.1:9/", "FAIL_IF": "--on-finish=touch${IFS}it"},
        {"URLS": "http://127.0.0.1:9/", "FAIL_IF": "lost > 0\n--on-finish\ntouch it"},
        {"URLS": "http://127.0.0.1:9/", "ARGS": "-c 20 '--fail-if=connections.held < 21"},
        {"URLS": "http://127.0.0.1:9/", "ARGS": '-c 20 "--fail-if=connections.held < 21 --no-reopen'},
        {"URLS": "http://127.0.0.1:9/", "ARGS": "--fail-if 'lost >\n0' -c 20"},
        {"URLS": "http://127.0.0.1:9/", "BASELINE_RUN": "--on-finish=touch${IFS}it"},
        {"URLS": "http://127.0.0.1:9/", "ARGS": "-c 20", "RESULTS": "results/../../outside"},
    ],
)
def test_an_input_is_a_value_or_is_refused(tmp_path: Path, inputs: dict[str, str]) -> None:
    ran = act(tmp_path / "job", **inputs)
    assert (ran.status, ran.outputs) == (2, "verdict=\n")
    assert ran.err
    assert not list(tmp_path.rglob("it")), ran.err
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("words", [("hadolint", "Dockerfile"), ("actionlint",)], ids=lambda words: words[0])
def test_a_linter_finds_nothing(words: tuple[str, ...]) -> None:
    if (program := shutil.which(words[0], path=PATHS)) is None:
        pytest.skip(f"no {words[0]} on this host")
    done = subprocess.run([program, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
