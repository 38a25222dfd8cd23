"""Makes the tables of docs/reference from the code. As a hook of mkdocs (mkdocs.yml) it makes them
anew, and adapts links.

    python scripts/reference.py        # writes the tables into docs/reference, and the JSON Schemas
    of plan files into configs/

What stands between "<!-- made: NAME -->" and "<!-- end: NAME -->" of a page is the output of
MADE[NAME]; a test requires that it is current. Pages link to the repository's files by path, as
GitHub does; on the site these links get the repository's address. A broken link fails a strict
build.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import logging
import pkgutil
import posixpath
import re
import sqlite3
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from asyncli import findings
from asyncli.analysis.bench_result import BenchResult
from asyncli.cli.main import COMMANDS, cli
from asyncli.collect.metric_rules import COUNTS, PRODUCTS, Join, Product, Reading
from asyncli.findings import bottleneck, loss_causes
from asyncli.findings.losses import CONNECT_WORDS, LOSS_WORDS, causes
from asyncli.model import benchplan, plan
from asyncli.model.metrics import METRICS, Metric
from asyncli.model.private_values import SENT_FILES
from asyncli.model.quantities import ANY, Quantity, quantity_of
from asyncli.report.csvout import COLUMNS
from asyncli.report.summary import Summary
from asyncli.report.thresholds import unit_words
from asyncli.store.schema import TABLES

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/asyncli/asyncli"
SITE = "https://asyncli.github.io/asyncli/"
log = logging.getLogger("mkdocs.hooks.reference")


# Plan files

_TEXT = {"type": "string"}
_NUMBER = {
    "type": ["integer", "string"],
    "minimum": 0,
    "pattern": r"^\s*[\d._]+\s*[kKmM]?\s*(/s)?$",
}
_PART, _UNIT = r"\d+(\.\d+)?\s*", "([uU][sS]|[mM][sS]|[sS]|[mM][iI][nN]|[mM]|[hH]|[dD])"
_TIME = {
    "type": ["number", "string"],
    "minimum": 0,
    "pattern": rf"^\s*({_PART}|({_PART}{_UNIT}\s*)+)$",
}
#: Values that a key takes in addition to its field's type.
_ALSO = {"hold": ["^forever$", r"^\s*[uU][nN][tT][iI][lL]\b"], "silence": ["^forever$"]}
_UNITS = {id(_TEXT): "text", id(_NUMBER): "count", id(_TIME): "time"}


class Key(msgspec.Struct):
    """A key of a plan file: its JSON Schema, its type for readers, its default, and its meaning."""

    schema: dict[str, Any]
    words: str
    default: str
    about: str


def keys_of(command: str) -> dict[str, Key]:
    """The keys of the plan files of ``soak`` or ``bench``."""
    of_bench = command == "bench"
    fields = msgspec.structs.fields(benchplan.BenchPlan if of_bench else plan.Plan)
    types = {one.name: one for one in fields}
    known = (
        {**benchplan.KEYS, **plan.HEADER_FILE} if of_bench else {**plan.KEYS, **plan.SECRET_FILES}
    )
    flags = {one.name: one for one in command_of(command).params if isinstance(one, click.Option)}
    found = {
        "urls": Key(
            _many(_TEXT), "texts", "", "The server's addresses; those of the command line win."
        )
    }
    for name, (field, parse) in known.items():
        if name != "urls" and name not in SENT_FILES:
            about, default = help_and_default(flags[name])
            schema, words = _type_of(
                name, str(types[field].type) if not name.endswith("_file") else "str", parse
            )
            found[name] = Key({"description": about, **schema}, words, default, about)
    if not of_bench:
        about, default = help_and_default(flags["ramp"])
        found["ramp"] = Key({"description": about, **_TEXT}, "count/time", "10/10ms", about)
    return found


def _type_of(
    name: str, annotation: str, parse: Callable[[object], Any]
) -> tuple[dict[str, Any], str]:
    """The JSON Schema and the type for readers, from the field's annotation; a text's parser may
    also take numbers (a version).
    """
    if words := re.search(r"Literal\[(.+?)\]", annotation):
        choices = [one.strip(" '\"") for one in words[1].split(",")]
        return {"enum": choices}, " or ".join(f"`{one}`" for one in choices)
    if "bool" in annotation:
        return {"type": "boolean"}, "true or false"
    if name == "events":
        return _EVENTS, "`[[events]]`"
    if "tuple" in annotation:
        return _many(_TEXT), "texts"
    one = (
        _TIME
        if "float" in annotation and name != "rate"
        else _NUMBER
        if re.search("int|float", annotation)
        else _TEXT
    )
    if name in _ALSO:
        return {"anyOf": [one, *({**_TEXT, "pattern": also} for also in _ALSO[name])]}, "time"
    versions = one is _TEXT and any(_takes(parse, number) for number in (5, 1.2))
    return ({"type": ["string", "number"]}, "text") if versions else (one, _UNITS[id(one)])


# A table, a pair of a time and words as --at takes it, or both in one text.
_SHARE_OR_TIME = {"type": ["string", "number"]}
_EVENTS: dict[str, Any] = {
    "type": "array",
    "items": {
        "anyOf": [
            _TEXT,
            {"type": "array", "items": _SHARE_OR_TIME, "minItems": 2, "maxItems": 2},
            {
                "type": "object",
                "properties": {
                    "at": _SHARE_OR_TIME,
                    "do": {"enum": ["drop", "storm", "vanish", "stall", "mark"]},
                    "text": _TEXT,
                    "share": _TEXT,
                    "how": {"enum": ["rst", "fin"]},
                    "for": _SHARE_OR_TIME,
                    "then": {"enum": ["return", "reconnect", "gone"]},
                },
                "required": ["at", "do"],
                "additionalProperties": False,
            },
        ]
    },
}


def _takes(parse: Callable[[object], Any], value: object) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _many(one: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [one, {"type": "array", "items": one}]}


def schema_of(command: str) -> str:
    """The JSON Schema of the command's plan files, for editors."""
    head = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"{SITE}{schema_name(command)}",
        "title": f"A plan of asyncli {command}",
        "type": "object",
        "additionalProperties": False,
    }
    return (
        json.dumps(
            head | {"properties": {name: key.schema for name, key in keys_of(command).items()}},
            indent=1,
        )
        + "\n"
    )


def schema_name(command: str) -> str:
    return "bench.schema.json" if command == "bench" else "plan.schema.json"


def plan_keys(command: str) -> Iterator[str]:
    rows = (
        (f"`{name}`", key.words, key.default and f"`{key.default}`", key.about)
        for name, key in keys_of(command).items()
    )
    yield from table(("key", "type", "default", "meaning"), rows)


# Commands


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def help_and_default(option: click.Option) -> tuple[str, str]:
    text, _, default = (option.help or "").partition("[default: ")
    default = default.removesuffix("]") or (str(option.default) if option.show_default else "")
    return text.strip(), default


def commands() -> Iterator[str]:
    soak = {_row(one) for one in command_of("soak").params if isinstance(one, click.Option)}
    for name in COMMANDS:
        command = command_of(name)
        usage = command.get_usage(
            click.Context(command, info_name=f"asyncli {name}", terminal_width=110)
        )
        yield f"\n## asyncli {name}\n\n```\n{usage.removeprefix('Usage: ')}\n```\n"
        yield from _paragraphs(command.help or "")
        yield from _paragraphs(command.epilog or "")
        own = [_row(one) for one in command.params if isinstance(one, click.Option)]
        shared = soak & {*own} if name != "soak" else set()
        if len(shared) > len(soak) / 2:
            flags = {flag.split()[0] for flag, _ in own}
            lacks = [f"`{flag}`" for flag, _ in sorted(soak) if flag.split()[0] not in flags]
            without = f" without {', '.join(lacks)}" if lacks else ""
            yield f"\nIt has the options of [asyncli soak](#asyncli-soak){without}, and:\n"
            own = [row for row in own if row not in soak]
        yield from table(("option", "meaning"), ((f"`{flag}`", about) for flag, about in own))


def _row(option: click.Option) -> tuple[str, str]:
    flags = ", ".join(option.opts) + "".join(f"/{one}" for one in option.secondary_opts)
    return flags + (f" {option.metavar}" if option.metavar else ""), " ".join(
        (option.help or "").split()
    )


def _paragraphs(text: str) -> Iterator[str]:
    r"""A help text as Markdown; paragraphs with ``\b``, which click does not wrap, become code
    blocks.
    """
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.lstrip().startswith("\b"):
            yield "\n```\n" + textwrap.dedent(part.replace("\b", "").strip("\n")) + "\n```\n"
        elif part.strip():
            yield f"\n{plain(part)}\n"


# Findings


def catalogue() -> Iterator[str]:
    for module in pkgutil.iter_modules(findings.__path__, "asyncli.findings."):
        importlib.import_module(module.name)
    for one in sorted(findings.CATALOGUE, key=lambda entry: entry.code):
        yield f"\n### `{one.code}`\n\n**{one.severity}**: {plain(one.about.replace('``', '`'))}\n"
        for sentence in sentences(one):
            yield f"\n> {plain(sentence)}\n"
        if one.remedy:
            yield f"\nRemedy: {plain(one.remedy)}\n"


def loss_causes_table() -> Iterator[str]:
    codes = {**LOSS_WORDS, **CONNECT_WORDS}
    yield from table(
        ("cause", "meaning"), ((f"`{code}`", text) for code in codes for text in causes(code))
    )


def mechanisms(known: Any) -> Iterator[str]:
    rows = (
        (f"`{code}`", evidence, remedy)
        for code in sorted(known.CODES)
        for evidence, remedy, _ in known.meanings(code)
    )
    yield from table(("code", "meaning", "remedy"), rows)


def sentences(entry: findings.Entry[...]) -> list[str]:
    """The templates of a finding's sentences, if its function returns them in one piece."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(entry._words))).body
    assert isinstance(function, ast.FunctionDef)
    fields = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
    found = []
    for node in ast.walk(function):
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Words" and value.args:
            value = value.args[0]
        if isinstance(value, ast.Constant | ast.JoinedStr):
            found.append(_template(value, fields))
    return [text for text in found if re.search(r"\w{3}", text.replace("…", ""))]


def _template(node: ast.expr, fields: set[str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(one, fields) for one in node.values)
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in fields]
    return f"{{{names[0]}}}" if len(set(names)) == 1 else "…"


# Output files

_JSON_HEAD = ("key", "type", "unit", "meaning")
_RESULTS: dict[str, type[msgspec.Struct]] = {"soak": Summary, "bench": BenchResult}


def json_keys(type_: type) -> Iterator[str]:
    """Tables of a JSON document's keys, from the JSON Schema that msgspec makes of its structs;
    units and meanings of numbers from the table of quantities.
    """
    document = msgspec.json.schema(type_)
    defined = document["$defs"]
    root = defined[document["$ref"].rpartition("/")[2]]
    parts = root["properties"]
    yield from table(
        _JSON_HEAD,
        _rows({name: one for name, one in parts.items() if not _struct(one, defined)}, defined),
    )
    for name, schema in parts.items():
        if inner := _struct(schema, defined):
            yield f"\n## {name}\n\n{plain(inner.get('description', '').replace('``', '`'))}\n"
            yield from table(_JSON_HEAD, _rows({name: schema}, defined))


def _rows(schemas: dict[str, Any], defined: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, schema in schemas.items():
        for path, words in _keys(name, schema, defined):
            quantity = _quantity(path)
            if quantity is None:
                yield f"`{path}`", words, "", ""
            else:
                yield f"`{path}`", words, unit_words(quantity), quantity.about


def _quantity(path: str) -> Quantity | None:
    """The quantity at this path of a JSON, or those by name in this object."""
    for key in (path, f"{path}.{ANY}"):
        with contextlib.suppress(KeyError):
            return quantity_of(key)
    return None


def results_schema(command: str) -> str:
    """The JSON Schema of the command's results, with unit and meaning of each number."""
    document = msgspec.json.schema(_RESULTS[command])
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{SITE}{results_schema_name(command)}",
        "title": f"Results of asyncli {command} (--json)",
    }
    described = _described("", {"$ref": document["$ref"]}, document["$defs"])
    return json.dumps(head | described, indent=1) + "\n"


def results_schema_name(command: str) -> str:
    return f"{command}-json.schema.json"


def _described(path: str, schema: Any, defined: dict[str, Any]) -> Any:
    """The schema without references: the same struct has other meanings at another path."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _described(path, defined[schema["$ref"].rpartition("/")[2]], defined)
    described = {}
    for keyword, value in schema.items():
        if keyword == "properties":
            described[keyword] = {
                name: _described(f"{path}.{name}".lstrip("."), inner, defined)
                for name, inner in value.items()
            }
        elif keyword == "additionalProperties":
            described[keyword] = _described(f"{path}.{ANY}", value, defined)
        elif keyword == "anyOf":
            described[keyword] = [_described(path, inner, defined) for inner in value]
        elif keyword == "items":
            described[keyword] = _described(f"{path}[]", value, defined)
        elif keyword not in ("description", "title"):
            described[keyword] = value
    if described.get("type") in ("number", "integer", "boolean"):
        quantity = _quantity(path)
        if quantity is not None:
            described["description"] = f"{quantity.about}, in {unit_words(quantity)}"
    return described


def _struct(schema: dict[str, Any], defined: dict[str, Any]) -> dict[str, Any] | None:
    """The object schema behind a reference, a choice with null, a list or a mapping."""
    for one in (
        schema,
        *schema.get("anyOf", ()),
        schema.get("items") or {},
        schema.get("additionalProperties") or {},
    ):
        if isinstance(one, dict) and "$ref" in one:
            found: dict[str, Any] = defined[one["$ref"].rpartition("/")[2]]
            return found
    return None


def _keys(path: str, schema: dict[str, Any], defined: dict[str, Any]) -> Iterator[tuple[str, str]]:
    null = " or null" if any(one.get("type") == "null" for one in schema.get("anyOf", ())) else ""
    inner = _struct(schema, defined)
    if schema.get("type") == "array":
        path += "[]"
    if isinstance(schema.get("additionalProperties"), dict) and inner:
        path += ".*"
    if inner and "properties" in inner:
        for name, one in inner["properties"].items():
            yield from _keys(f"{path}.{name}", one, defined)
    else:
        yield path, _words(inner or schema) + null


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"] if one is not None)
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return " or ".join(map(_words, choices)) if choices else schema.get("type", "any")


def run_file() -> Iterator[str]:
    with sqlite3.connect(":memory:") as database:
        database.executescript(TABLES)
        found = database.execute(
            "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
        )
        for name, kind in found.fetchall():
            yield f"\n## {name}\n\n" + ("A view.\n" if kind == "view" else "")
            columns = database.execute(f"PRAGMA table_info({name})").fetchall()
            yield from table(
                ("column", "type"),
                ((f"`{column}`", type_.lower()) for _, column, type_, *_ in columns),
            )


def csv_columns() -> Iterator[str]:
    for name, columns in COLUMNS.items():
        yield f"\n## {name}.csv\n\n"
        yield from table(
            ("column", "meaning"), ((f"`{column}`", about) for column, about in columns.items())
        )


def metrics() -> Iterator[str]:
    def exposed(one: Metric) -> str:
        return (
            f"`asyncli_{one.exposed}{f'{{{one.label}}}' if one.label else ''}`"
            if one.exposed
            else ""
        )

    rows = ((f"`{name}`", one.kind, one.about, exposed(one)) for name, one in METRICS.items())
    yield from table(("metric", "kind", "meaning", "Prometheus"), rows)


def server_metrics() -> Iterator[str]:
    for product in PRODUCTS:
        yield f"\n### {product.name}\n\n"
        names = " or ".join(f"`{name}`" for name in product.recognised_by)
        if product.refused:
            yield f"Recognised by {names}, and refused: it {product.refused}.\n"
            continue
        yield f"Recognised by {names}. {_how_known(product)}\n"
        rows = ((f"`{one.metric}`", _place(one), _scrape(one)) for one in product.readings)
        yield from table(("metric", "on the page", "asyncli's reading of the page"), rows)


def _how_known(product: Product) -> str:
    known = "Read on pages of it." if product.measured else "By its documentation alone."
    if product.is_exporter:
        known += " Another process than the server writes the page, so its memory is not read."
    return known


def _place(reading: Reading) -> str:
    """Where a page has a value, as Prometheus would ask for it."""
    labels = [f'{name}="{"|".join(values)}"' for name, values in reading.where.items()]
    labels += [f'{name}!="{"|".join(values)}"' for name, values in reading.unless.items()]
    braces = "{" + ", ".join(labels) + "}" if labels else ""
    places = " + ".join(f"`{name}{braces}`" for name in reading.names)
    if reading.join is not Join.SUM:
        places = f"{reading.join.value} of {places}"
    if reading.factor != 1.0:
        places += f" x {reading.factor:g}"
    return places


def _scrape(reading: Reading) -> str:
    if reading.metric not in COUNTS:
        return ""
    if reading.join is Join.RISEN:
        return "counted by the row that serves the page"
    return "counted" if reading.counts_scrape else "not counted"


# The site


def plain(text: str) -> str:
    """Escape a text for Markdown, except in backquotes."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        one if one.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", one) for one in parts
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    made = [
        [
            one.replace("|", "\\|") if one.startswith("`") else plain(one).replace("|", "\\|")
            for one in row
        ]
        for row in rows
    ]
    if made:
        names = list(head)
        yield (
            "\n"
            + "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *made))
            + "\n"
        )


MADE: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "plan": lambda: plan_keys("soak"),
    "bench plan": lambda: plan_keys("bench"),
    "findings": catalogue,
    "causes": loss_causes_table,
    "diagnoses": lambda: mechanisms(loss_causes),
    "what gave way": lambda: mechanisms(bottleneck),
    "soak JSON": lambda: json_keys(Summary),
    "bench JSON": lambda: json_keys(BenchResult),
    "run file": run_file,
    "CSV": csv_columns,
    "metrics": metrics,
    "server metrics": server_metrics,
}


#: A part of a page that is made from the code.
MADE_PART = re.compile(r"<!-- made: (?P<name>.+?) -->\n.*?<!-- end: (?P=name) -->", re.DOTALL)
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: add the schemas to the site."""
    from mkdocs.structure.files import File

    for command in ("soak", "bench"):
        files.append(File.generated(config, schema_name(command), content=schema_of(command)))
        schema = results_schema(command)
        files.append(File.generated(config, results_schema_name(command), content=schema))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs: insert the tables, and adapt links."""
    here = posixpath.dirname(page.file.src_uri)

    def adapted(link: re.Match[str]) -> str:
        target, mark, anchor = link[1].partition("#")
        path = posixpath.normpath(posixpath.join("docs", here, target))
        if "://" in target or not target or path.startswith("docs/"):
            return link[0]
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which is not in the repository", page.file.src_uri, target)
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/HEAD/{path}{mark}{anchor})"

    markdown = re.sub(r"\]\(([^)\s]+)\)", adapted, markdown)
    return MADE_PART.sub(lambda part: "".join(MADE[part["name"]]()), markdown)


def current(markdown: str) -> str:
    """The page with its tables as the code makes them."""

    def made(part: re.Match[str]) -> str:
        name = part["name"]
        return f"<!-- made: {name} -->\n{''.join(MADE[name]()).rstrip()}\n\n<!-- end: {name} -->"

    return MADE_PART.sub(made, markdown)


def write() -> None:
    """Write the tables and the schemas."""
    for kind in ("soak", "bench"):
        (ROOT / "configs" / schema_name(kind)).write_text(schema_of(kind), encoding="utf-8")
        schema = results_schema(kind)
        (ROOT / "configs" / results_schema_name(kind)).write_text(schema, encoding="utf-8")
    for page in PAGES:
        page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
