"""The classic comparisons of long, short and pipelined connections on real servers, each as one
command.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec

from asyncli.model.errors import HostError, PlanError
from asyncli.model.installed import how_to_install
from asyncli.model.units import parse_duration

# Clients that are modules of this package are light processes: importing types must load nothing.
if TYPE_CHECKING:
    from asyncli.experiments.context import Context
    from asyncli.experiments.record import Conclusions, Rounds

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_MIN_S = 1e-3
_MAX_S = 86_400.0


class ExperimentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Common settings. In subclasses texts are times ("10s"), and lists of texts are servers."""

    rounds: Count = 1
    only: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        for key, value in msgspec.structs.asdict(self).items():
            if isinstance(value, str):
                try:
                    seconds = parse_duration(value)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
                if not _MIN_S <= seconds <= _MAX_S:
                    raise ValueError(
                        f"{key}: {value!r} is out of range; write a time from 1ms to 24h"
                    )


class Experiment(NamedTuple):
    """``plan``: its settings; ``quick``: those that differ in a quick run. ``run`` measures into a
    context; ``conclude`` is pure and makes conclusions from a plan and rounds, however few.
    """

    name: str
    #: Both are formats of the plan's fields: ``{connections:,}``.
    title: str
    question: str
    #: The write-up that it repeats, by title (translated) and author; "": none, its claims are
    #: predictions of asyncli's design.
    write_up: str
    #: What the write-up did.
    source: str
    plan: type[ExperimentPlan]
    quick: dict[str, Any]
    run: Callable[[Context], Awaitable[None]]
    conclude: Callable[[Any, Rounds], Conclusions]
    #: The servers that a plan may name.
    servers: tuple[str, ...]

    @property
    def cited(self) -> str:
        """The write-up, and what it did."""
        if not self.write_up:
            return self.source
        return f"{self.write_up}; {self.source}"

    def title_and_question(self, plan: ExperimentPlan) -> tuple[str, str]:
        """Title and question with the numbers of ``plan``."""
        values = msgspec.structs.asdict(plan)
        return self.title.format_map(values), self.question.format_map(values)


# Settings that have a flag; the others can only be given by a record.
_FLAGS = {"rounds", "duration", "connections", "keepalive", "only"}

#: name -> what it compares, and its duration on two CPUs. The module has the same name.
ABOUT = {
    "short-vs-keepalive": "a connection per request, or kept alive; Apache, nginx (8 min)",
    "upstream-keepalive": "a proxy with or without keep-alive to its backends; nginx (7 min)",
    "pipelining": "pipelines against one at a time, threads and tasks; nginx (6 min)",
    "server-models": "processes, threads and pools, by CPU per connection; programs in C (6 min)",
    "holding": "what a held connection costs each server of the lab, and how many fit (15 min)",
    "atlas": "what one held connection costs, by server and protocol (90 min)",
    "two-clients": "one nginx, two clients of 50,000 on separate hosts, in namespaces (3 min)",
    "client-lost": (
        "one nginx, two client hosts by Dask, one disconnected for a while, in namespaces (3 min)"
    ),
}
NAMES = tuple(ABOUT)


def load(name: str) -> Experiment:
    """The experiment called ``name``. Raises :class:`~asyncli.model.errors.PlanError` for an
    unknown one, and HostError where asyncli-light is installed, which has none.
    """
    if name not in NAMES:
        raise PlanError(f"unknown experiment {name!r}; write one of {', '.join(NAMES)}")
    module = f"asyncli.experiments.{name.replace('-', '_')}"
    try:
        return cast(Experiment, importlib.import_module(module).EXPERIMENT)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise HostError(f"asyncli-light has no experiments; {how_to_install()}") from None


def plan_of(
    experiment: Experiment, quick: bool, changes: Mapping[str, Any], where: str = ""
) -> Any:
    """The plan: defaults, then ``quick``, then ``changes``. Unknown keys (of older records) are
    ignored. Raises :class:`PlanError`, with ``where`` before the key.
    """
    values = dict(changes)
    if quick:
        values = {**experiment.quick, **changes}
    try:
        plan = msgspec.convert(values, experiment.plan)
    except ValueError as error:
        reason, _, key = str(error).partition(" - at `$.")
        if key:
            raise PlanError(f"{where}{key.removesuffix('`')}: {reason}") from None
        raise PlanError(f"{where}{reason}") from None
    for key, value in msgspec.structs.asdict(plan).items():
        if isinstance(value, list):
            _require_servers(experiment, value, f"{where}{key}")
    return plan


def _require_servers(experiment: Experiment, names: Iterable[object], where: str) -> None:
    for name in names:
        if isinstance(name, str) and name not in experiment.servers:
            known = ", ".join(experiment.servers)
            raise PlanError(f"{where}: unknown server {name!r}; write one of {known}")


def command_of(experiment: Experiment, plan: ExperimentPlan, quick: bool) -> str:
    """The command that repeats the run; in its record's folder if flags cannot express the plan."""
    defaults = msgspec.structs.asdict(plan_of(experiment, quick, {}))
    changed = {}
    for key, value in msgspec.structs.asdict(plan).items():
        if value != defaults[key]:
            changed[key] = value if isinstance(value, list) else [value]
    words = ["asyncli", "experiment", experiment.name]
    if not changed.keys() <= _FLAGS:
        return shlex.join([*words, "--plan", "record.json"])
    if quick:
        words.append("--quick")
    for key, values in changed.items():
        for value in values:
            words += [f"--{key}", str(value)]
    return shlex.join(words)
