"""The documentation site builds without warnings, and its generated tables are complete."""

from __future__ import annotations

import json
import logging
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from documented import ROOT
from mkdocs.commands.build import build
from mkdocs.config import load_config

from asyncli.model.benchplan import KEYS as BENCH_KEYS
from asyncli.model.plan import KEYS
from asyncli.model.private_values import SENT_FILES

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "fuzz")]
import of_plans  # noqa: E402
import reference  # noqa: E402

PLANS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_finding_command_and_metric_is_on_the_site(site: Path) -> None:
    shown = {name: (site / "reference" / name / "index.html").read_text(encoding="utf-8") for name in ("findings", "commands", "metrics", "soak-json")}
    codes = {one.code for one in reference.findings.CATALOGUE}
    assert not {code for code in codes if f">{code}</code>" not in shown["findings"]}
    assert not {name for name in reference.COMMANDS if f'id="asyncli-{name}"' not in shown["commands"]}
    assert not {name for name in reference.METRICS if f">{name}</code>" not in shown["metrics"]}
    document = json.loads((ROOT / "tests" / "golden" / "clean.json").read_text(encoding="utf-8"))
    assert not {f"{part}.{key}" for part in ("run", "connections", "ramp", "generator") for key in document[part] if f">{part}.{key}" not in shown["soak-json"]}
    assert not [path for path in site.rglob("*.html") if "<!-- made:" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_the_tables_in_the_repository_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == reference.current(text), "write it again: python scripts/reference.py"


def test_a_link_to_nothing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Page:
        class file:  # noqa: N801
            src_uri = "howto/a.md"

    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        said = reference.on_page_markdown("[a](../../bench/README.md#x) [b](../tls.md) [c](https://a/) [d](../../bench/none.md)", Page)
    there = f"{reference.REPOSITORY}/blob/HEAD/bench"
    assert re.findall(r"\((.*?)\)", said) == [f"{there}/README.md#x", "../tls.md", "https://a/", f"{there}/none.md"]
    assert [record.args for record in caplog.records] == [("howto/a.md", "../../bench/none.md")]


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_the_schema_of_plans_is_current(command: str) -> None:
    name = reference.schema_name(command)
    made = reference.schema_of(command)
    jsonschema.Draft7Validator.check_schema(json.loads(made))
    assert made == (ROOT / "configs" / name).read_text(encoding="utf-8"), "write it again: python scripts/reference.py"
    assert {*(BENCH_KEYS if command == "bench" else KEYS)} - {*SENT_FILES} <= json.loads(made)["properties"].keys()


@pytest.mark.parametrize("command", ["soak", "bench"])
def test_the_schema_of_results_is_current(command: str) -> None:
    made = reference.results_schema(command)
    jsonschema.Draft202012Validator.check_schema(json.loads(made))
    name = reference.results_schema_name(command)
    assert made == (ROOT / "configs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_a_shipped_plan_names_its_schema_and_follows_it(path: Path) -> None:
    first, _, text = path.read_text(encoding="utf-8").partition("\n")
    schema = first.removeprefix("#:schema ")
    jsonschema.validate(tomllib.loads(text), json.loads((ROOT / "configs" / schema).read_text(encoding="utf-8")))


def test_the_schema_refuses_no_value_that_asyncli_takes() -> None:
    schema = json.loads(reference.schema_of("soak"))
    good = [{key: value} for key in KEYS for value in of_plans._GOOD[key] if value is not None and key not in SENT_FILES]
    assert not [plan for plan in good if not _follows(plan, schema)]
    assert len(good) > 200


@pytest.mark.parametrize(("key", "value"), [("conections", 5), ("hold", "8 parsecs"), ("hold", -1), ("connections", "many"), ("abort", "yes"), ("first_beat", "later"), ("urls", 5)])
def test_the_schema_refuses_what_asyncli_refuses(key: str, value: Any) -> None:
    assert not _follows({key: value}, json.loads(reference.schema_of("soak")))


def _follows(plan: dict[str, Any], schema: dict[str, Any]) -> bool:
    plain = json.loads(json.dumps(plan))
    return not list(jsonschema.Draft7Validator(schema).iter_errors(plain))
