"""The classic comparisons of long, short and pipelined connections, each as one command on real servers."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from asyncli.errors import PlanError

# Clients that are modules of this package are light processes: naming types must load nothing.
if TYPE_CHECKING:
    from asyncli.experiments.context import Context
    from asyncli.experiments.record import Conclusions, Round


class Experiment(NamedTuple):
    """How an experiment is done. ``defaults`` and ``quick``: its plan, in full and what a taste changes of it.

    ``run`` measures into a context; ``conclude`` is pure: of a plan and rounds, however few, what they come to.
    """

    name: str
    title: str
    question: str
    #: What it reproduces, in a sentence.
    source: str
    defaults: dict[str, Any]
    quick: dict[str, Any]
    run: Callable[[Context], Awaitable[None]]
    conclude: Callable[[dict[str, Any], list[Round]], Conclusions]


#: name -> the module with its EXPERIMENT.
NAMES = {
    "short-vs-keepalive": "short_vs_keepalive",
    "upstream-keepalive": "upstream_keepalive",
    "pipelining": "pipelining",
    "server-models": "server_models",
    "holding": "holding",
}


def load(name: str) -> Experiment:
    """The experiment called ``name``. Raises :class:`~asyncli.errors.PlanError` for an unknown one."""
    if name not in NAMES:
        raise PlanError(f"unknown experiment {name!r}; write one of {', '.join(NAMES)}")
    return cast(Experiment, importlib.import_module(f"asyncli.experiments.{NAMES[name]}").EXPERIMENT)


def plan_of(experiment: Experiment, quick: bool, changes: dict[str, Any]) -> dict[str, Any]:
    """The plan: the defaults, for a taste changed by ``quick``, and by what the user says. Raises :class:`PlanError`."""
    plan = experiment.defaults | (experiment.quick if quick else {})
    for key, value in changes.items():
        if key not in plan:
            raise PlanError(f"experiment {experiment.name}: unknown key {key!r}; the keys are {', '.join(plan)}")
        if isinstance(plan[key], list) != isinstance(value, list) or isinstance(value, str) != isinstance(plan[key], str):
            raise PlanError(f"experiment {experiment.name}: {key}: {value!r} is not of the kind of {plan[key]!r}")
    return plan | changes
