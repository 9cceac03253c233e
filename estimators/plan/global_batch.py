"""The global batch of a job: the samples of an optimizer step, over all ranks and micro-batches.

It is found if the script writes it out: ``trainer.loader(data, batch_size=config.batch_size)`` with a number, or with
a field of the script's configuration. It is not found if the script computes it, or in other loops than the Trainer's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from estimators.checks.script.facts import ScriptFacts
from estimators.errors import Problem, error
from estimators.plan.resources import Topology
from smddp.script_syntax import PACKAGE, PythonModule, run_main


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The batch of an optimizer step, as the script states it."""

    size: int
    """Samples, over all ranks and micro-batches."""
    accumulate: int | None
    """Micro-batches of a step on each rank, or None if the script does not write them out."""

    @classmethod
    def of(cls, script: ScriptFacts, hyperparameters: Mapping[str, Any]) -> GlobalBatch | None:
        """Return the batch of a script, or None if the script does not state it in this form."""
        found = run_main(script.modules)
        if found is None or not found[1].args.args:
            return None
        module, main = found
        known = _Known(script.config.parameter or main.args.args[0].arg, {**hyperparameters, **script.config.values})
        loaders = [call for call in ast.walk(main) if _is_loader(call)]
        sizes = {_argument(call, "batch_size", 1, known) for call in loaders}
        if len(sizes) != 1 or len(loaders) != sum(map(_is_loader, module.calls)):
            return None
        size = sizes.pop()
        return None if size is None else cls(size=size, accumulate=_accumulate(module, known))


def check(batch: GlobalBatch | None, topology: Topology) -> Iterator[Problem]:
    """Yield a batch that the ranks can't share, by the Trainer's own rule; nothing if a number is unknown.

    Each host has at least one rank. So a batch that the hosts can't share does not suit their unknown ranks either.
    """
    ranks = topology.processes or topology.hosts_with_ranks
    if batch is None or batch.accumulate is None or not ranks:
        return
    from smddp.data.order import Partition  # it imports numpy

    try:
        Partition(
            size=max(batch.size, 1), global_batch=batch.size, world_size=ranks, accumulate=max(batch.accumulate, 1)
        )
    except ValueError as fault:
        found, _, nearest = str(fault).rpartition("; ")
        yield error("hyperparameters", found, f"{nearest[:1].upper()}{nearest[1:]}.")


@dataclass(frozen=True, slots=True)
class _Known:
    config: str
    """The name of main's parameter for the configuration."""
    values: Mapping[str, Any]
    """The values of its fields, as far as they are known."""

    def whole_number(self, node: ast.expr) -> int | None:
        """Return a literal number, or a field's; None for any other expression."""
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Attribute(value=ast.Name(id=self.config), attr=field):
                value = self.values.get(field)
                return value if type(value) is int else None
        return None


def _is_loader(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "loader"


def _argument(call: ast.AST, name: str, position: int, known: _Known) -> int | None:
    assert isinstance(call, ast.Call)
    given = [*call.args[position : position + 1], *(each.value for each in call.keywords if each.arg == name)]
    return known.whole_number(given[0]) if len(given) == 1 else None


def _accumulate(module: PythonModule, known: _Known) -> int | None:
    trainers = [call for call in module.calls if module.full_name(call.func) == f"{PACKAGE}.Trainer"]
    if len(trainers) != 1 or any(keyword.arg is None for keyword in trainers[0].keywords):
        return None
    given = [keyword.value for keyword in trainers[0].keywords if keyword.arg == "accumulate"]
    return known.whole_number(given[0]) if given else 1
