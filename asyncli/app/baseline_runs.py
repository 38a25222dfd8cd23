"""The runs that --baseline-run names: read and measured in a process of its own, since the analysis
takes memory that the soak's own process must not have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncli.analysis.compare import hindrance, is_of_plan
from asyncli.analysis.measured import MeasuredRun, facts, measure
from asyncli.analysis.worsening import COMPARABLE, BaselineRun
from asyncli.model.errors import AsyncliError, HostError, PlanError
from asyncli.model.own_process import command_of, environment_of
from asyncli.model.plan import KEYS, Plan, load_plan, plan_document
from asyncli.model.private_values import recorded_document
from asyncli.model.run import Run
from asyncli.model.text import printable
from asyncli.model.units import format_duration
from asyncli.report.live_thresholds import relative_limits
from asyncli.report.summary import Summary, summarise, verdict_needs_summary
from asyncli.report.thresholds import parse
from asyncli.store.reader import read_run

# Each takes about a second to measure.
_MOST_OF_A_FOLDER = 30
_OPTION = "--baseline-run"
_FIRST = "soak what to compare with first, with --out FILE and without --baseline-run"
# The key of each field of a plan, as options and plans write it.
_OPTION_OF = {field: option for option, (field, _) in KEYS.items()}
# How long connections are held, and what is measured after them.
_MAY_DIFFER = ("plan.hold_s", "plan.hold_until", "plan.residue_s", "plan.fail_if", "plan.abort")


class _Asked(msgspec.Struct):
    """What the process is asked: the files and folders, and the new run's plan without secrets."""

    places: tuple[str, ...]
    plan: dict[str, Any]


class BaselineRuns(msgspec.Struct, frozen=True):
    """The runs that a soak compares with, in order of their start; and in one line each, why files
    of a folder are not among them. ``problem``: why it cannot compare with them; "" if it can.
    """

    runs: tuple[BaselineRun, ...] = ()
    left_out: tuple[str, ...] = ()
    problem: str = ""


def read_baseline_runs(plan: Plan) -> BaselineRuns:
    """What the runs measured that ``plan`` compares with. Blocks for about a second a run.

    Raises :class:`PlanError` for a file that is no run, or one that cannot be compared, and for a
    limit whose number none of them has.
    """
    if not plan.baseline_runs:
        return BaselineRuns()
    asked = _Asked(plan.baseline_runs, recorded_document(plan_document(plan)))
    done = subprocess.run(
        command_of("asyncli.app.baseline_runs"),
        env=environment_of(),
        input=msgspec.json.encode(asked),
        capture_output=True,
        check=False,
    )
    try:
        known = msgspec.json.decode(done.stdout, type=BaselineRuns)
    except msgspec.MsgspecError:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"{_OPTION}: its runs were not read: {last_line}") from None
    if known.problem:
        raise PlanError(f"{_OPTION}: {known.problem}")
    _require_numbers(plan, known.runs)
    return known


def _require_numbers(plan: Plan, runs: Sequence[BaselineRun]) -> None:
    """Raise :class:`PlanError` for a limit that could not be decided, whatever is measured."""
    for text in relative_limits(plan):
        key = COMPARABLE[parse(text, Summary).key]
        if not any(key in run.numbers for run in runs):
            raise PlanError(
                f"--fail-if {text!r}: no baseline run has this number; in {runs[0].name}: "
                f"{runs[0].unknown[key]}; make one that has it (longer, or on a quieter host), or "
                "limit another number"
            )


def _answer(asked: _Asked) -> BaselineRuns:
    runs: dict[str, BaselineRun] = {}
    left_out: list[str] = []
    try:
        new = load_plan(asked.plan)
        for place in asked.places:
            path = Path(place)
            if not path.exists():
                raise PlanError(f"{place}: no such file or folder; {_FIRST}")
            if path.is_dir():
                of_folder, refused = _runs_in(path, new)
                if not of_folder:
                    raise PlanError(_none_in(path, refused))
                left_out += refused
            else:
                of_folder = [_read(path, new, is_named=True)]
            runs.update({run.id: run for run in of_folder})
    except AsyncliError as error:
        return BaselineRuns(problem=printable(str(error)))
    in_order = sorted(runs.values(), key=lambda run: run.started)
    return BaselineRuns(tuple(in_order), tuple(map(printable, left_out)))


def _runs_in(folder: Path, new: Plan) -> tuple[list[BaselineRun], list[str]]:
    """The newest runs of a folder that can be compared, and why others cannot be."""
    runs: list[BaselineRun] = []
    refused: list[str] = []
    for path in _newest_first(folder):
        if len(runs) == _MOST_OF_A_FOLDER:
            break
        try:
            runs.append(_read(path, new, is_named=False))
        except AsyncliError as error:
            # What to do about it is of a file that was named.
            refused.append(str(error).partition("; ")[0])
    return runs, refused


def _newest_first(folder: Path) -> Iterator[Path]:
    dated = []
    for path in folder.glob("*.db"):
        try:
            dated.append((path.stat().st_mtime, path))
        except OSError:
            continue
    for _, path in sorted(dated, reverse=True):
        yield path


def _none_in(folder: Path, refused: Sequence[str]) -> str:
    if refused:
        return f"{folder}: none of its {len(refused)} run files can be compared; {refused[0]}"
    return f"{folder}: has no run files (*.db); name another folder, or {_FIRST}"


def _read(path: Path, new: Plan, *, is_named: bool) -> BaselineRun:
    """What a run measured. Raises :class:`AsyncliError` if it cannot be compared with a ``new``
    soak, or if it did not pass. A run that the user named may be worse than its
    own baseline runs.
    """
    run = read_run(path)
    why = hindrance(str(path), run)
    if why is not None:
        raise PlanError(why)
    if not run.complete:
        raise PlanError(f"{path}: did not reach its end; compare with runs that did")
    _require_same_plan(path, run.plan, new)
    measured = measure(path.name, str(path), run)
    _require_passed(path, run, measured, is_named=is_named)
    return BaselineRun.of(printable(path.name), measured)


def _require_passed(path: Path, run: Run, measured: MeasuredRun, *, is_named: bool) -> None:
    judged = run
    if is_named:
        judged = _without_relative_limits(run)
    verdict = measured.verdict
    why = measured.why
    if verdict_needs_summary(judged):
        summary = summarise(judged)
        verdict = summary.verdict
        why = summary.why
        if any(limit.against is not None and limit.kept is False for limit in summary.limits):
            raise PlanError(f"{path}: was itself worse than the runs before it")
    if verdict != "passed":
        raise PlanError(f"{path}: did not pass, so it is no baseline run: {verdict}, {why}")


def _without_relative_limits(run: Run) -> Run:
    """The run as it is judged without its own baseline runs."""
    relative = relative_limits(run.plan)
    others = tuple(text for text in run.plan.fail_if if text not in relative)
    plan = msgspec.structs.replace(run.plan, fail_if=others, baseline_runs=())
    return msgspec.structs.replace(run, plan=plan)


def _facts_of_plan(plan: Plan) -> dict[str, Any]:
    """What two runs must have in common to be compared: all of the plan but where the server is,
    and how long connections are held. Of its URLs that is whether they are of TLS.
    """
    known = {}
    for key, value in facts(plan, {}).items():
        if is_of_plan(key) and key not in _MAY_DIFFER:
            known[key] = value
    known["scheme"] = _schemes(plan)
    return known


def _schemes(plan: Plan) -> str:
    """The schemes of its URLs: "https", or "http and https"."""
    schemes = {target.url.partition("://")[0].lower() for target in plan.targets}
    return " and ".join(sorted(schemes))


def _require_same_plan(path: Path, run: Plan, new: Plan) -> None:
    of_run = _facts_of_plan(run)
    for key, value in _facts_of_plan(new).items():
        if of_run.get(key) == value:
            continue
        earlier = _as_typed(key, run, of_run.get(key))
        now = _as_typed(key, new, value)
        if earlier == now:
            # They differ by less than is shown: two batches of one rate.
            earlier = f"{earlier} ({of_run.get(key)})"
            now = f"{now} ({value})"
        raise PlanError(
            f"{path}: was a soak {earlier}, and this one {now}; soak with the options of that "
            "run, or compare with another"
        )


def _as_typed(key: str, plan: Plan, value: object) -> str:
    """``with --keepalive 20s``, ``without --abort``: the option by which a plan has this fact."""
    field = key.removeprefix("plan.")
    if field == "ramp":
        return f"with --ramp {plan.asked_per_s:g}/s"
    if field not in _OPTION_OF:
        return f"with the {field} {value}"
    option = f"--{_OPTION_OF[field].replace('_', '-')}"
    if value is False and field == "reopen":
        return "with --no-reopen"
    if not value:
        return f"without {option}"
    if value is True:
        return f"with {option}"
    if isinstance(value, list | tuple):
        return "with " + " ".join(f"{option} {part}" for part in value)
    if field.endswith("_s") and isinstance(value, int | float):
        duration = format_duration(value).replace(" min", "m").replace(" ", "")
        return f"with {option} {duration}"
    return f"with {option} {value}"


if __name__ == "__main__":
    answer = _answer(msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked))
    sys.stdout.buffer.write(msgspec.json.encode(answer))
