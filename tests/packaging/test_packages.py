"""Builds the packages once, checks them, installs them for each available Python, and uses them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pytest
from hosts import clustered
from programs import SHORT, Program, serving, until
from provoked import an_nginx

import asyncli

ROOT = Path(asyncli.__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: The environments that are to be small.
SMALL = ("agent", "runner", "host")
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


class Built:
    """The packages, each built at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def wheel(self) -> Path:
        """Built from :attr:`sdist`."""
        self._build(".")
        return self._only("asyncli-*.whl")

    @cached_property
    def sdist(self) -> Path:
        assert self.wheel
        return self._only("asyncli-*.tar.gz")

    @cached_property
    def agent(self) -> Path:
        self._build("--wheel", "packaging/agent")
        return self._only("asyncli_agent-*.whl")

    @cached_property
    def light(self) -> Path:
        self._build("--wheel", "packaging/light")
        return self._only("asyncli_light-*.whl")

    def _build(self, *words: str) -> None:
        assert UV is not None
        call(UV, "build", "-q", "-o", self._folder, *words)

    def _only(self, name: str) -> Path:
        (path,) = self._folder.glob(name)
        return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("dist"))


class Environments:
    """Folders of programs, each installed at its first use: for each Python one with all of asyncli, "agent", and the two of
    asyncli-light: "runner" and "host"."""

    def __init__(self, folder: Path, built: Built) -> None:
        self._folder, self._built = folder, built
        self._made: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._made:
            self._install(name)
            self._made[name] = self._folder / name / "bin"
        return self._made[name]

    def _install(self, name: str) -> None:
        interpreter: str | None = sys.executable
        if name == "agent":
            packages = [str(self._built.agent)]
        elif name == "runner":
            packages = [f"{self._built.light}[runner]"]
        elif name == "host":
            # Both ends of a cluster need the same.
            same = [f"{one}=={importlib.metadata.version(one)}" for one in ("dask", "distributed") if importlib.util.find_spec(one)]
            packages = [f"{self._built.light}[host]", *same]
        else:
            interpreter = python(name)
            packages = [str(self._built.wheel)]
        assert UV is not None
        assert interpreter is not None
        call(UV, "venv", "-q", "--python", interpreter, self._folder / name)
        # How much the small ones take on a disk is measured. Of the others each start compiles only what it imports.
        compiled = ["--compile-bytecode"] if name in SMALL else []
        call(UV, "pip", "install", "-q", *compiled, "--python", self._folder / name, *packages)


@pytest.fixture(scope="module")
def environments(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    folder = tmp_path_factory.mktemp("environments")
    yield Environments(folder, built)
    shutil.rmtree(folder)


def test_what_is_built_can_be_uploaded(built: Built) -> None:
    programs = Path(sys.executable).parent
    call(programs / "twine", "check", "--strict", built.wheel, built.sdist, built.agent, built.light)
    call(programs / "check-wheel-contents", built.wheel, built.agent, built.light)
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


def test_a_container_build_gets_what_the_packages_are_built_of(built: Built, tmp_path: Path) -> None:
    context = tmp_path / "context"
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        name = line.removeprefix("!")
        if name in (line, ".git"):
            continue
        place = context / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, place)
    dist = tmp_path / "dist"
    assert UV is not None
    for package, whole in ((".", built.wheel), ("packaging/agent", built.agent), ("packaging/light", built.light)):
        call(UV, "build", "-q", "--wheel", "-o", dist, context / package)
        name = whole.name.partition("-")[0]
        with zipfile.ZipFile(whole) as expected, zipfile.ZipFile(next(dist.glob(f"{name}-*.whl"))) as made:
            # Their folders of metadata have the version in their names.
            assert members(made) == members(expected)


def members(wheel: zipfile.ZipFile) -> set[str]:
    return {re.sub(r"^(\w+)-[^/]*/", r"\1/", name) for name in wheel.namelist()}


def test_the_wheel_holds_connections_on_every_python(built: Built, environments: Environments, tmp_path: Path) -> None:
    # Before the threads below ask for it.
    assert built.wheel.exists()

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
        list(pool.map(hold, [version for version in VERSIONS if python(version)]))


def bytes_of(programs: Path) -> int:
    """What the packages of an environment take on a disk, compiled as pip compiles them."""
    return sum(path.stat().st_blocks * 512 for path in (programs.parent / "lib").rglob("*"))


def cpu_s(*words: str | Path) -> float:
    """The CPU time of a call. Its wall time is that of a quiet host; on a busy one it has the waits for a CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def require_a_tenth_of_a_second(python: Path, *words: str | Path) -> None:
    """Require that the least CPU time of many calls is below 0.1 s, or where a busy host's CPUs are slower, below three times that of Python
    with some large modules of its own, called in turn with it: a quiet host takes 0.03 s for these."""
    called, standard = [], []
    for _ in range(20):
        called.append(cpu_s(*words))
        standard.append(cpu_s(python, "-c", "import argparse, asyncio, json, subprocess"))
    assert min(called) < max(0.1, 3 * min(standard)), (min(called), min(standard))


@pytest.mark.measures
def test_help_and_import_take_less_than_a_tenth_of_a_second(environments: Environments) -> None:
    programs = environments[f"{sys.version_info[0]}.{sys.version_info[1]}"]
    python = programs / "python"
    require_a_tenth_of_a_second(python, programs / "asyncli", "--help")
    require_a_tenth_of_a_second(python, programs / "asyncli", "soak", "--help")
    require_a_tenth_of_a_second(python, python, "-c", "import asyncli")


@pytest.mark.parametrize("name", ["runner", "host"])
def test_a_light_installation_takes_at_most_60_mb(environments: Environments, name: str) -> None:
    programs = environments[name]
    assert bytes_of(programs) <= 60 << 20
    code = "import importlib.util as u\nassert not any(map(u.find_spec, ('numpy', 'scipy', 'matplotlib', 'pandas')))"
    call(programs / "python", "-c", code)


def test_a_light_runner_soaks_and_leaves_the_costs_to_a_full_asyncli(environments: Environments, tmp_path: Path) -> None:
    asyncli = environments["runner"] / "asyncli"
    demo = ("demo", "--server", "builtin", "--tls", "-c", "50", "--ramp", "50/s", "--hold", "1s", *SHORT, "--first-beat", "now")
    said = call(asyncli, *demo, "--out", "run.db", "--json", "run.json", "--junit", "run.xml", "--fail-if", "lost > 0", folder=tmp_path)
    assert said.startswith("PASSED")
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (run["run"]["verdict"], run["connections"]["held"], run["tls"] is not None) == ("passed", 50, True)
    assert {run["cost"][name] for name in ("server_user", "kernel", "host_total")} == {None}
    assert [finding["fields"]["costs"] for finding in run["findings"] if finding["code"] == "cost_not_sampled"] == [[]]
    assert "NumPy" in said
    # With all of asyncli the same file has its costs, or other reasons for their lack.
    full = json.loads(call(sys.executable, "-m", "asyncli", "report", "run.db", "--json", "-", folder=tmp_path))
    assert [] not in [finding["fields"]["costs"] for finding in full["findings"] if finding["code"] == "cost_not_sampled"]
    assert (full["connections"], full["heartbeats"]) == (run["connections"], run["heartbeats"])


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "run.db", "run.db"),
        ("size", "run.db", "-c", "1M"),
        ("storm", "run.db"),
        ("agent", "--listen", "127.0.0.1:0"),
        ("experiment", "holding"),
        ("lab", "go-http"),
        ("lab", "haproxy"),
        ("report", "run.db", "--html", "run.html"),
        ("report", "run.db", "--plots", "plots"),
        ("watch", "run.db", "--web"),
        ("soak", "--fail-if", "cost.server_user > 1kB", "http://127.0.0.1:1/"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_light_runner_says_what_to_install(environments: Environments, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "run.db").touch()
    done = subprocess.run([environments["runner"] / "asyncli", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    remedy = "; pip uninstall asyncli-light, then pip install asyncli\n"
    assert done.stderr.endswith(remedy)


@contextmanager
def worker_of(programs: Path, scheduler: str, folder: Path) -> Iterator[None]:
    """A Dask worker of another environment, which sees only its own packages."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [programs / "dask", "worker", scheduler, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    log = folder / "worker.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment)
    try:
        until(lambda: "Registered to" in log.read_text() or process.poll() is not None, "the worker is there")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait()


def test_a_light_host_opens_the_connections_of_a_fleet(environments: Environments, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    refused = subprocess.run([environments["host"] / "asyncli", "soak", "http://127.0.0.1:1/"], capture_output=True, text=True, check=False)
    line = "asyncli: soak: aiohttp, rich not installed; pip install 'asyncli-light[runner]'\n"
    assert (refused.returncode, refused.stderr) == (2, line)
    with serving() as server, clustered(tmp_path) as hosts, worker_of(environments["host"], hosts.address, tmp_path):
        soak = ("soak", "-c", "50", "--hold", "1s", *SHORT, "--cluster", hosts.address, "--json", "run.json", "--out", "run.db", server.url)
        call(sys.executable, "-m", "asyncli", *soak, folder=tmp_path)
        # It has no library for TLS.
        secure = ("soak", "-c", "50", "--cluster", hosts.address, "--out", "tls.db", "--insecure", "https://127.0.0.1:1/")
        without = subprocess.run([sys.executable, "-m", "asyncli", *secure], cwd=tmp_path, capture_output=True, text=True, check=False)
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (run["run"]["verdict"], run["connections"]["held"]) == ("passed", 50)
    assert (without.returncode, without.stderr.count("\n"), "asyncli-light[host,tls]" in without.stderr) == (2, 1, True)


@pytest.mark.nginx
def test_the_agent_alone_is_small_and_serves_a_soak(environments: Environments, tmp_path: Path) -> None:
    programs = environments["agent"]
    assert bytes_of(programs) < 40_000_000
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
