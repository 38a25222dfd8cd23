"""A bench's plan from flags and files: what is accepted, and the one-line error for each wrong input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asyncli.cli.main import run as run_here
from asyncli.engine.shard import build_load_shard
from asyncli.engine.spread import Spread
from asyncli.model.benchplan import KEYS, LONGEST_BODY, LONGEST_TRAIN, MOST_REQUESTS, BenchPlan, build_bench_plan
from asyncli.model.errors import PlanError
from asyncli.model.plan import Layer
from asyncli.model.plan_file import read_plan_file

URL = "http://127.0.0.1:1/"


def plan(**values: Any) -> BenchPlan:
    return build_bench_plan([Layer("--{key}", {"urls": [URL], **values})])


def refused(**values: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(**values)
    line = str(caught.value)
    assert "\n" not in line
    assert "; " in line, "it does not say how to mend it"
    return line


def test_every_field_of_a_plan_has_a_key() -> None:
    assert {field for field, _ in KEYS.values()} == set(BenchPlan.__struct_fields__)


@pytest.mark.parametrize("many", ["100000000000000000000", 2**63, 10**400, "1000001M"], ids=["1e20", "2**63", "1e400", "1e12"])
def test_no_more_requests_than_can_be_counted(many: object) -> None:
    assert refused(requests=many).startswith("--requests: ")
    assert plan(requests=MOST_REQUESTS).requests == MOST_REQUESTS


def test_a_body_is_read_no_further_than_it_may_be_long(tmp_path: Path) -> None:
    assert "too long" in refused(body="@/dev/zero")
    file = tmp_path / "body"
    file.write_bytes(b"x" * LONGEST_BODY)
    assert len(plan(body=f"@{file}").body) == LONGEST_BODY
    with file.open("ab") as more:
        more.write(b"x")
    assert "too long" in refused(body=f"@{file}")


def test_a_body_of_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (f"{tmp_path / 'pipe'}", f"{tmp_path}", "a\0b", ""):
        assert refused(body=f"@{place}").startswith("--body: ")


@pytest.mark.parametrize(
    "values",
    [
        {"method": "PUT", "body": "x" * 6_000_000, "pipeline": 10_000},
        {"method": "PUT", "body": "x" * 10_000, "pipeline": 10_000},
        {"header": ["X: " + "x" * 10_000], "pipeline": 10_000},
        {"urls": [URL + "x" * 10_000], "pipeline": 10_000},
        {"urls": [URL] * 100, "pipeline": 10_000, "connections": 100},
    ],
    ids=["60 GB", "a body", "a header", "a URL", "many URLs"],
)
def test_what_is_written_at_once_fits_into_memory(values: dict[str, Any]) -> None:
    line = refused(**values)
    assert line.startswith("--pipeline: 10,000 ")
    most = int(line.rpartition(" ")[2].replace(",", ""))
    built = plan(**values | {"pipeline": most})
    shard = build_load_shard(built, Spread((), (), 1, True, 1))
    assert sum(map(len, shard.asks)) * most <= LONGEST_TRAIN
    if most > 1:
        refused(**values | {"pipeline": most + 1})
    assert plan(pipeline=10_000).pipeline == 10_000


def test_each_url_has_a_connection() -> None:
    assert plan(urls=[URL, URL], connections=2).connections == 2
    assert refused(urls=[URL, URL], connections=1).startswith("--connections: 2 ")


def test_the_shipped_plan_reads() -> None:
    file = Path(__file__).parent.parent / "configs" / "bench.toml"
    built = build_bench_plan([read_plan_file(file, KEYS), Layer("URL", {"urls": [URL]})])
    assert (built.connections, built.rate, built.duration_s, built.timeout_s) == (100, 1000.0, 10.0, 5.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("conections = 5", "'conections'"), ("keepalive = 60", "'keepalive'"), ("short = 'no'", "short: 'no'"), ("body = 5", "body: 5"), ("body = '@/etc/passwd'", "--body '@/etc/passwd'"),
        ("header_file = '/etc/passwd'", "write --header-file FILE"),
        (f"requests = {10**400}", "requests: "), ("[bench]", "'bench'"),
    ],
)
def test_a_wrong_plan_file_is_one_line_with_its_name_and_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    file = tmp_path / "bench.toml"
    file.write_text(text)
    assert run_here(["bench", URL, "--plan", str(file)]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert f"asyncli: {file}: " in err
    assert what in err
