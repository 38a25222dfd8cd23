"""The classic comparisons of long, short and pipelined connections, each as one command on real servers."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asyncli.errors import PlanError
from asyncli.units import format_count, format_duration, parse_duration

# Clients that are modules of this package are light processes: naming types must load nothing.
if TYPE_CHECKING:
    from asyncli.experiments.context import Context
    from asyncli.experiments.record import Conclusions, Round


class Experiment(NamedTuple):
    """How an experiment is done. ``defaults`` and ``quick``: its plan, in full and what a taste changes of it.

    A default also says of what kind its key is: a whole number, a number, a time as text ("10s"), a list of whole numbers or of
    names. ``run`` measures into a context; ``conclude`` is pure: of a plan and rounds, however few, what they come to.
    """

    name: str
    #: Both with the numbers of a plan: ``{connections:,}``. See :meth:`said`.
    title: str
    question: str
    #: What it reproduces, in a sentence.
    source: str
    defaults: dict[str, Any]
    quick: dict[str, Any]
    run: Callable[[Context], Awaitable[None]]
    conclude: Callable[[dict[str, Any], list[Round]], Conclusions]
    #: All that a list of names may name, ``only`` first of all.
    servers: tuple[str, ...] = ()
    #: key -> the least and the most of its numbers, of a time in seconds, where that is not :data:`_NUMBERS` or :data:`_TIMES`.
    bounds: Mapping[str, tuple[float, float]] = MappingProxyType({})

    def said(self, plan: Mapping[str, Any]) -> tuple[str, str]:
        """Title and question, of what ``plan`` asks for."""
        return self.title.format_map(plan), self.question.format_map(plan)


_NUMBERS = (1, 1_000_000)
_TIMES = (1e-3, 86_400.0)
# What the command line has a flag for; the rest of a plan comes from a record.
_FLAGS = ("rounds", "duration", "connections", "only")

#: name -> what it compares, and how long that takes on two CPUs.
ABOUT = {
    "short-vs-keepalive": "a connection for each request, or kept alive; Apache, nginx (6 min)",
    "upstream-keepalive": "a proxy that keeps its connections to the backends, or not; nginx (5 min)",
    "pipelining": "pipelines against one at a time, threads and tasks; nginx (2 min)",
    "server-models": "processes, threads and pools, by CPU a connection; programs in C (6 min)",
    "holding": "what a held connection costs each server of the lab, and how many fit (20 min)",
    "two-clients": "one nginx, two clients of 50,000 on hosts of their own, in namespaces (3 min)",
    "client-lost": "one nginx, a fleet of two by Dask, one of them cut off and back, in namespaces (3 min)",
}
#: Each has a module of its name.
NAMES = tuple(ABOUT)


def load(name: str) -> Experiment:
    """The experiment called ``name``. Raises :class:`~asyncli.errors.PlanError` for an unknown one."""
    if name not in NAMES:
        raise PlanError(f"unknown experiment {name!r}; write one of {', '.join(NAMES)}")
    return cast(Experiment, importlib.import_module(f"asyncli.experiments.{name.replace('-', '_')}").EXPERIMENT)


def plan_of(experiment: Experiment, quick: bool, changes: Mapping[str, Any], where: str | None = None) -> dict[str, Any]:
    """The plan: the defaults, for a taste changed by ``quick``, and by what the user says, which is checked.

    Raises :class:`PlanError` with ``where`` before the key.
    """
    for key, value in changes.items():
        if key not in experiment.defaults:
            known = ", ".join(experiment.defaults)
            raise PlanError(f"experiment {experiment.name}: unknown key {key!r}; the keys are {known}")
        try:
            _require(experiment, key, value)
        except ValueError as error:
            raise PlanError(f"{f'experiment {experiment.name}: ' if where is None else where}{key}: {error}") from None
    return experiment.defaults | (experiment.quick if quick else {}) | dict(changes)


def require_plan(experiment: Experiment, plan: Mapping[str, Any], where: str) -> None:
    """Raise :class:`PlanError` with ``where`` for a plan of a record that is not whole, or of which something cannot be.

    What it lacked would silently be today's default.
    """
    plan_of(experiment, False, plan, where)
    if missing := [key for key in experiment.defaults if key not in plan]:
        raise PlanError(f"{where}its plan says nothing of {missing[0]}; its keys are {', '.join(experiment.defaults)}")


def command_of(experiment: Experiment, plan: Mapping[str, Any], quick: bool) -> str:
    """The command that runs this again; from the folder of its record where its plan says what no flag can."""
    usual = plan_of(experiment, quick, {})
    changed = {key: value for key, value in plan.items() if value != usual.get(key)}
    words = ["asyncli", "experiment", experiment.name]
    if not set(changed) <= set(_FLAGS):
        return shlex.join([*words, "--plan", "record.json"])
    words += ["--quick"] if quick else []
    for key, value in changed.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{key}", str(one)]
    return shlex.join(words)


def _require(experiment: Experiment, key: str, value: object) -> None:
    """Raise ``ValueError`` for a value that this key of a plan cannot have."""
    kind = experiment.defaults[key]
    bounds = experiment.bounds.get(key, _TIMES if isinstance(kind, str) else _NUMBERS)
    if isinstance(kind, str):
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a time as text; write one such as {kind!r}")
        if not bounds[0] <= parse_duration(value) <= bounds[1]:
            least, most = map(format_duration, bounds)
            raise ValueError(f"{value!r} cannot be; write a time from {least} to {most}")
    elif not isinstance(kind, list):
        _require_number(value, bounds, whole=isinstance(kind, int))
    elif not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list; write one such as {kind!r}")
    elif kind and isinstance(kind[0], int):
        if not value:
            raise ValueError(f"nothing is no list of numbers; write one such as {kind!r}")
        for one in value:
            _require_number(one, bounds, whole=True)
    elif unknown := [one for one in value if one not in experiment.servers]:
        raise ValueError(f"unknown server {unknown[0]!r}; write one of {', '.join(experiment.servers)}")


def _require_number(value: object, bounds: tuple[float, float], *, whole: bool) -> None:
    # A bool is an int to Python, and to nobody else.
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not bounds[0] <= cast(float, value) <= bounds[1]:
        least, most = (format_count(one) if one == int(one) else f"{one:g}" for one in bounds)
        raise ValueError(f"{value!r} cannot be; write a {'whole ' if whole else ''}number from {least} to {most}")
