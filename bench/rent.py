"""Measures what each rule of the analysis pays: takes it away, evaluates recorded runs again, and
counts those whose report changes.

    python bench/rent.py [--tables cost ends losses verdict] [--tests FILE...] [--coverage]

The runs are those that tests/golden stores, and the made-up ones of tests/golden and tests/report.
The rules are the adjustments of a cost, the mechanisms of losses, the rules of ends at once, and
those of the verdict. A rule that did nothing in a run, such as one that returned None, cannot
change it by its absence, so a run is evaluated again only without those that did something. A line
says in how many runs a rule did something, and in how many its absence changes the verdict, the
diagnoses (code and count), the codes of findings, or a cost (its value or an end of its interval,
by more than 2 % of the largest of the three); in how many it changes only other words or numbers of
the JSON; and in how many no report can be made without it.

A rule without an effect may be paid for by a fault that a test provokes, and whose run is not
stored. For these a list says which tests have its name, its codes or its words in quotes, and which
of those docs/reference/faults.md names. With ``--tests`` it says too which tests of these files
fail without the rule, up to the second failure: better evidence, and slower. ``--coverage`` takes
each adjustment of a cost away in some cells of coverage.py in place of the recorded runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import lzma
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import coverage
import numpy as np
import pytest
from common import HERE, command, machine

from asyncli.analysis import adjustments, run_adjustments, verdict
from asyncli.analysis.losses import attribution, bursts
from asyncli.analysis.losses.table import LossTable, unclaimed
from asyncli.analysis.slope import Cost
from asyncli.findings import CATALOGUE, loss_causes
from asyncli.model.run import Run
from asyncli.report.jsonout import to_json
from asyncli.report.summary import Summary, summarise
from asyncli.store.reader import read_run

sys.path.insert(0, str(HERE.parent / "tests"))
sys.path.insert(0, str(HERE.parent / "tests" / "analysis"))
sys.path.insert(0, str(HERE.parent / "tests" / "report"))
sys.path.insert(0, str(HERE.parent / "tests" / "golden"))

import made_runs
import test_made_up_runs

TESTS = HERE.parent / "tests"
GOLDEN = TESTS / "golden"
FAULTS = HERE.parent / "docs" / "reference" / "faults.md"
COSTS = (
    "server_user",
    "kernel",
    "kernel_queued",
    "generator_user",
    "host_total",
    "residual",
    "behind",
)
# A cost has changed if a number of it moved by more than this share.
MOVED = 0.02
# A text of a rule that is worth searching for has a space and so many characters.
WORDS = 12
# What the absence of a rule changes, and the columns of a line.
EFFECTS = ("verdict", "diagnoses", "findings", "costs", "only other words", "no report")
COLUMNS = ("active", *EFFECTS)
#: Cells of coverage.py: (seconds of the ramp, plateaus), and the ways that memory varies.
CELLS = ((coverage.SHORT_S, 0), (20.0, 0), (100.0, 0), (100.0, 5))
WAYS = (
    "noise, phi 0.5",
    "random walk",
    "arenas of 8 MB",
    "first use, phi 0.5",
    coverage.OTHERS,
    *coverage.BENT,
)


# Rules, and which of them do something.


class Rule(NamedTuple):
    """A rule, and the tuple in which it stands."""

    table: str
    module: ModuleType
    tuple_name: str
    place: int
    function: Callable[..., Any]

    @property
    def plain_function(self) -> FunctionType:
        return self.function.func if isinstance(self.function, partial) else self.function

    @property
    def name(self) -> str:
        name = self.plain_function.__name__
        if not isinstance(self.function, partial):
            return name
        given = ", ".join(f"{key}={value}" for key, value in self.function.keywords.items())
        return f"{name}({given})"


#: A rule's function -> the same, which also calls what it is given if the rule did something.
Watch = Callable[[Callable[..., Any], Callable[[], None]], Callable[..., Any]]


def watch_adjustment(adjust: Callable[..., Any], did: Callable[[], None]) -> Callable[..., Any]:
    def watched(seen: Any, known: Any) -> Any:
        adjusted = adjust(seen, known)
        if adjusted is not known and adjusted != known:
            did()
        return adjusted

    return watched


def watch_mechanism(claim: Callable[..., Any], did: Callable[[], None]) -> Callable[..., Any]:
    def watched(table: LossTable) -> None:
        before = unclaimed(table.cells)
        claim(table)
        if unclaimed(table.cells) != before:
            did()

    return watched


def watch_answer(answer: Callable[..., Any], did: Callable[[], None]) -> Callable[..., Any]:
    def watched(case: Any) -> Any:
        answered = answer(case)
        if answered is not None:
            did()
        return answered

    return watched


class Table(NamedTuple):
    """A tuple of rules: what it is called here and in a heading, and how its rules are watched."""

    name: str
    heading: str
    module: ModuleType
    tuple_name: str
    watch: Watch

    @property
    def rules(self) -> list[Rule]:
        functions = getattr(self.module, self.tuple_name)
        return [
            Rule(self.name, self.module, self.tuple_name, place, function)
            for place, function in enumerate(functions)
        ]


TABLES = (
    Table("cost", "a cost: beside the line", adjustments, "ADJUSTMENTS", watch_adjustment),
    Table("cost", "a cost: the whole run", run_adjustments, "ADJUSTMENTS", watch_adjustment),
    Table("losses", "losses: mechanisms", attribution, "_MECHANISMS", watch_mechanism),
    Table("ends", "losses: ends at once", bursts, "_RULES", watch_answer),
    Table("verdict", "the verdict", verdict, "RULES", watch_answer),
)


@contextlib.contextmanager
def replaced(module: ModuleType, tuple_name: str, rules: Iterable[Any]) -> Iterator[None]:
    """Another tuple of rules while the context is open."""
    original = getattr(module, tuple_name)
    setattr(module, tuple_name, tuple(rules))
    try:
        yield
    finally:
        setattr(module, tuple_name, original)


@contextlib.contextmanager
def away(rule: Rule) -> Iterator[None]:
    """Its tuple without the rule."""
    rules = list(getattr(rule.module, rule.tuple_name))
    del rules[rule.place]
    with replaced(rule.module, rule.tuple_name, rules):
        yield


@contextlib.contextmanager
def watched(tables: Iterable[Table], active: set[Rule]) -> Iterator[None]:
    """Rules that add themselves to ``active`` when they do something."""
    with contextlib.ExitStack() as stack:
        for table in tables:
            watching = [
                table.watch(rule.function, partial(active.add, rule)) for rule in table.rules
            ]
            stack.enter_context(replaced(table.module, table.tuple_name, watching))
        yield


# The recorded runs.


def recorded_runs() -> dict[str, Run]:
    """The stored and the made-up runs by name."""
    runs = {}
    with tempfile.TemporaryDirectory() as scratch:
        for packed in sorted(GOLDEN.glob("*.db.xz")):
            path = Path(scratch) / packed.stem
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            runs[path.stem] = read_run(path)
    for name, make in made_runs.KINDS.items():
        runs[f"made up: {name}"] = make()
    for number, run in enumerate(runs_of_answers(), start=1):
        runs[f"made up: answer {number}"] = run
    return runs


def runs_of_answers() -> list[Run]:
    """The runs behind the made-up answers of tests/golden, which yields their summaries only."""
    runs = []

    def kept(run: Run) -> Summary:
        runs.append(run)
        return summarise(run)

    test_made_up_runs.good.cache_clear()
    test_made_up_runs.summarise = kept
    try:
        for _ in test_made_up_runs.cases():
            pass
    finally:
        test_made_up_runs.summarise = summarise
    return runs


class Said(NamedTuple):
    """What a report says: the parts that are compared, and all of it."""

    verdict: str
    diagnoses: Counter[tuple[str, str, int]]
    findings: Counter[str]
    costs: Mapping[str, Cost | None]
    json: str

    @classmethod
    def of(cls, run: Run) -> Said:
        summary = summarise(run)
        return cls(
            summary.verdict,
            Counter((one.cause, one.code, one.count) for one in summary.diagnoses),
            Counter(finding.code for finding in summary.findings),
            {name: summary.cost.cost_of(name) for name in COSTS},
            to_json(summary),
        )


def effects(before: Said, after: Said) -> list[str]:
    """Which of :data:`EFFECTS` a rule's absence has on a report."""
    changed = []
    if before.verdict != after.verdict:
        changed.append("verdict")
    if before.diagnoses != after.diagnoses:
        changed.append("diagnoses")
    if before.findings != after.findings:
        changed.append("findings")
    if any(has_moved(before.costs[name], after.costs[name]) for name in COSTS):
        changed.append("costs")
    if not changed and before.json != after.json:
        changed.append("only other words")
    return changed


def has_moved(before: Cost | None, after: Cost | None) -> bool:
    if before is None or after is None:
        return before is not after
    numbers = (before.bytes_per_connection, *before.ci95)
    scale = max(abs(number) for number in numbers)
    moved = (after.bytes_per_connection, *after.ci95)
    return any(abs(new - old) > MOVED * scale for old, new in zip(numbers, moved, strict=True))


def replay(runs: Mapping[str, Run], tables: Iterable[Table]) -> dict[Rule, Counter[str]]:
    """How often each rule did something ("active"), and each effect of its absence."""
    paid = {rule: Counter[str]() for table in tables for rule in table.rules}
    for run in runs.values():
        active: set[Rule] = set()
        with watched(tables, active):
            before = Said.of(run)
        for rule in active:
            paid[rule]["active"] += 1
            paid[rule].update(effects_of_absence(rule, run, before))
    return paid


def effects_of_absence(rule: Rule, run: Run, before: Said) -> list[str]:
    with away(rule):
        try:
            after = Said.of(run)
        except Exception:
            # The rules after it may rely on it.
            return ["no report"]
    return effects(before, after)


def show_replay(runs: Mapping[str, Run], tables: Iterable[Table], tests: list[str]) -> None:
    paid = replay(runs, tables)
    print(f"Runs: {len(runs)}\n")
    for table in tables:
        print_line(table.heading, COLUMNS)
        for rule in table.rules:
            counts = [paid[rule][name] or "" for name in COLUMNS]
            print_line(rule.name, counts)
        print()
    print("Without an effect (*: docs/reference/faults.md names the file):", flush=True)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py"))}
    for rule, counts in paid.items():
        if any(counts[name] for name in EFFECTS):
            continue
        print(f"  {rule.name} ({rule.table}): {', '.join(files_that_name(rule, texts)) or 'none'}")
        if tests:
            print(f"    fails without it: {', '.join(failures_without(rule, tests)) or 'none'}")
        sys.stdout.flush()


def print_line(first: str, others: Sequence[object]) -> None:
    columns = [f"{one!s:>{max(9, len(name))}}" for one, name in zip(others, COLUMNS, strict=True)]
    print(f"{first:38} {' '.join(columns)}".rstrip())


# What names a rule.


def files_that_name(rule: Rule, texts: Mapping[Path, str]) -> list[str]:
    """The tests with a mark of the rule in them; a star behind those that provoke documented
    faults.
    """
    faults = FAULTS.read_text(encoding="utf-8")
    marks = marks_of(rule)
    files = []
    for path, text in texts.items():
        if not any(mark in text for mark in marks):
            continue
        star = "*" if f"`{path.name}::" in faults else ""
        files.append(path.relative_to(TESTS).as_posix() + star)
    return files


def marks_of(rule: Rule) -> set[str]:
    """What a test may name of a rule: its function, the codes of its findings and diagnoses, and
    its own words.
    """
    names: set[str] = set()
    texts: set[str] = set()
    for function in with_private_ones(rule.plain_function):
        for code in with_inner_ones(function.__code__):
            names.update(code.co_names)
            texts.update(one for one in code.co_consts if isinstance(one, str))
        texts.discard(function.__doc__ or "")
    codes = {entry.code for entry in CATALOGUE} & names
    codes |= (loss_causes._CAUSES.keys() | loss_causes._FORMS.keys()) & texts
    quoted = {f'"{code}"' for code in (*codes, rule.plain_function.__name__)}
    return quoted | {text for text in texts if len(text) >= WORDS and " " in text.strip()}


def with_private_ones(function: FunctionType) -> list[FunctionType]:
    """A function, and the private ones of its module that it calls, directly or not."""
    found = [function]
    for one in found:
        for name in one.__code__.co_names:
            called = one.__globals__.get(name)
            is_private = name.startswith("_") and isinstance(called, FunctionType)
            if is_private and called not in found:
                found.append(called)
    return found


def with_inner_ones(code: CodeType) -> list[CodeType]:
    """The code of a function, and of those inside it."""
    found = [code]
    for one in found:
        found += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return found


def failures_without(rule: Rule, tests: list[str]) -> list[str]:
    """The tests of these files that fail without the rule, up to the second failure."""
    said = io.StringIO()
    options = ["-q", "--no-header", "--tb=no", "--maxfail=2", "-p", "no:cacheprovider"]
    with away(rule), contextlib.redirect_stdout(said):
        status = pytest.main([*options, *tests])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(said.getvalue())
    return sorted(set(re.findall(r"^FAILED [^:]*/(\S+?::\w+)", said.getvalue(), re.MULTILINE)))


# Cells of coverage.py.


def show_coverage(tables: Iterable[Table], runs: int, seed: int) -> None:
    """Print each cell as it is, and without each adjustment that does something in it."""
    adjusting = [table for table in tables if table.module is adjustments]
    never = {rule.name for table in adjusting for rule in table.rules}
    print(f"{'a cell: % with the truth (half width, %)':64} {'with':>12} {'without':>12}")
    for seconds, plateaus in CELLS:
        plan = coverage.design(seconds, plateaus)
        for way in WAYS:
            active: set[Rule] = set()
            with watched(adjusting, active):
                before = cell(plan, way, runs, seed)
            for rule in sorted(active, key=lambda rule: rule.place):
                never.discard(rule.name)
                with away(rule):
                    after = cell(plan, way, runs, seed)
                place = f"{rule.name}: {plan.name}, {way}"
                print(f"{place:64} {before:>12} {after:>12}", flush=True)
    print(f"\nNothing to do in any cell: {', '.join(sorted(never))}")


def cell(plan: coverage.Design, way: str, runs: int, seed: int) -> str:
    """A cell of coverage.py by asyncli's own rule, from the same runs at each call."""
    chance = np.random.default_rng([seed, len(plan.n), plan.plan.plateaus])
    true = coverage.truth(plan, way)
    slopes = []
    for _ in range(runs):
        every, others = plan.n, None
        if way == coverage.OTHERS:
            others = every = plan.n + coverage.of_another_client(plan.n, chance)
        values = coverage.METRICS[way](every, chance)
        cost = coverage.fitted(plan, values, others).cost
        low, high = cost.ci95
        value = cost.bytes_per_connection
        # An asymmetric interval counts by the side on which the truth is.
        slopes.append((value, high - value if value < true else value - low))
    return coverage.cell(slopes, true)


def main() -> None:
    parser = argparse.ArgumentParser()
    names = list(dict.fromkeys(table.name for table in TABLES))
    parser.add_argument("--tables", nargs="+", choices=names, default=names, metavar="TABLE")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--runs", type=int, default=40, help="of a cell of coverage.py")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"$ {command()}\n{machine()}\n")
    tables = [table for table in TABLES if table.name in options.tables]
    if options.coverage:
        show_coverage(tables, options.runs, options.seed)
    else:
        show_replay(recorded_runs(), tables, options.tests)


if __name__ == "__main__":
    main()
