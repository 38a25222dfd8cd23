"""Builds the packages once, checks them, installs them for each available Python, and uses them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from programs import SHORT, Program
from provoked import an_nginx

import asyncli

ROOT = Path(asyncli.__file__).parents[1]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(UV is None or not (ROOT / "packaging").exists(), reason="takes uv, and a checkout")


def python(version: str) -> str | None:
    """The interpreter of this version; a name on PATH may be a pyenv shim without an interpreter."""
    found = sys.executable if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else shutil.which(f"python{version}")
    return found if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0 else None


def call(*words: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class Built(NamedTuple):
    wheel: Path
    sdist: Path
    agent: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A folder with the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    assert UV is not None
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda words: call(UV, "build", "-q", "-o", folder, *words), [(".",), ("--wheel", "packaging/agent")]))
    return Built(next(folder.glob("asyncli-*.whl")), next(folder.glob("asyncli-*.tar.gz")), next(folder.glob("asyncli_agent-*.whl")))


@pytest.fixture(scope="module")
def environments(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Folders of programs: for each Python one with all of asyncli, and "agent"."""
    folder = tmp_path_factory.mktemp("environments")
    wanted = {version: (found, built.wheel) for version in ("3.11", "3.12", "3.13", "3.14") if (found := python(version))}
    wanted["agent"] = (sys.executable, built.agent)
    assert UV is not None
    for name, (interpreter, wheel) in wanted.items():
        call(UV, "venv", "-q", "--python", interpreter, folder / name)
        call(UV, "pip", "install", "-q", "--python", folder / name, wheel)
    yield {name: folder / name / "bin" for name in wanted}
    shutil.rmtree(folder)


def test_what_is_built_can_be_uploaded(built: Built) -> None:
    programs = Path(sys.executable).parent
    call(programs / "twine", "check", "--strict", *built)
    call(programs / "check-wheel-contents", built.wheel, built.agent)
    with zipfile.ZipFile(built.wheel) as wheel, tarfile.open(built.sdist) as sdist:
        names = wheel.namelist()
        assert {"asyncli/py.typed", "asyncli/_configs/smoke.toml", "asyncli/_docs/reference/terms.md"} < set(names)
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        versions = {wheel.read("asyncli/VERSION"), sdist.extractfile(f"{sdist.getnames()[0].split('/')[0]}/asyncli/VERSION").read()}  # type: ignore[union-attr]
    assert versions == {f"{asyncli.__version__}\n".encode()}
    # On a package index the README's links cannot be relative.
    links = re.findall(r"\]\(([^)]*)\)", metadata)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    assert all((ROOT / link.split("/main/")[1].partition("#")[0]).exists() for link in links if "/asyncli/main/" in link or "/blob/main/" in link)


def test_the_wheel_holds_connections_on_every_python(environments: dict[str, Path], tmp_path: Path) -> None:
    def hold(name: str) -> None:
        said = call(environments[name] / "asyncli", "--version")
        assert said == f"asyncli {asyncli.__version__}\n"
        folder = tmp_path / name
        folder.mkdir()
        demo = ("demo", "--server", "builtin", "-c", "100", "--hold", "1s", *SHORT, "--first-beat", "now", "--json", "run.json", "--html", "run.html")
        call(environments[name] / "asyncli", *demo, folder=folder)
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        assert (run["run"]["verdict"], run["connections"]["held"]) == ("passed", 100)
        assert run["environment"]["asyncli"] == asyncli.__version__

    with ThreadPoolExecutor() as pool:
        list(pool.map(hold, [name for name in environments if name != "agent"]))


@pytest.mark.nginx
def test_the_agent_alone_is_small_and_serves_a_soak(environments: dict[str, Path], tmp_path: Path) -> None:
    programs = environments["agent"]
    call(programs / "python", "-m", "compileall", "-q", programs.parent / "lib")
    assert sum(path.stat().st_blocks * 512 for path in (programs.parent / "lib").rglob("*")) < 40_000_000
    refused = subprocess.run([programs / "asyncli", "soak", "http://127.0.0.1:1/"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    program = (str(programs / "asyncli-agent"),)
    with an_nginx() as nginx, Program(tmp_path, "--listen", "127.0.0.1:0", "--status-url", nginx.status_url, program=program) as agent:
        url = agent.until(lambda: re.search(r"listens at (\S+)", agent.err), "the agent listens")[1]
        soak = ("soak", "-c", "50", "--hold", "1s", *SHORT, "--agent", url, "--json", "run.json", "--out", "run.db", nginx.url)
        call(sys.executable, "-m", "asyncli", *soak, folder=tmp_path)
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert run["run"]["verdict"] == "passed"
    assert run["environment"]["agent"]["asyncli"] == asyncli.__version__
    assert run["reconciliation"]["agrees"] is True
