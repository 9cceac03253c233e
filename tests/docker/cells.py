"""The cells of the matrix: a distribution, the toolkit in the image, where the job runs; and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Toolkit = Literal["AWS's", "ours"]
Place = Literal["processes", "Local Mode", "Docker executor"]

DISTRIBUTIONS: Mapping[str, str | Mapping[str, Any] | None] = {
    "torch_distributed": "torchrun",
    "pytorchddp": "pytorchddp",
    "smdistributed.dataparallel": "smdistributed",
    "mpi": {"mpi": {"enabled": True, "processes_per_host": 2}},
    "parameter_server": "parameter_server",
    "plain": None,
}
"""What ``Estimator(distribution=…)`` gets."""

TOOLKITS: tuple[Toolkit, ...] = ("AWS's", "ours")
PLACES: tuple[Place, ...] = ("processes", "Local Mode", "Docker executor")


@dataclass(frozen=True, kw_only=True)
class Cell:
    distribution: str
    toolkit: Toolkit
    place: Place

    def __str__(self) -> str:
        return f"{self.distribution}, {self.toolkit}, {self.place}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    refused: str = ""
    """Why; empty if the job trained."""
    launcher: str = ""
    """What the ranks say that started them."""
    backend: str = ""
    ranks: int = 0

    @property
    def summary(self) -> str:
        """The outcome in a few words."""
        return self.refused or f"{self.launcher}, {self.ranks} ranks, {self.backend}"


CELLS = tuple(
    Cell(distribution=distribution, toolkit=toolkit, place=place)
    for distribution in DISTRIBUTIONS
    for toolkit in TOOLKITS
    for place in PLACES
    if not (toolkit == "AWS's" and place == "processes")
)

_TORCHRUN = Outcome(launcher="torchrun", ranks=2, backend="gloo")
_ALONE = Outcome(launcher="sagemaker", ranks=2, backend="gloo")
_WORKS: Mapping[tuple[str, Toolkit], Outcome] = {
    ("torch_distributed", "AWS's"): _TORCHRUN,
    ("torch_distributed", "ours"): _TORCHRUN,
    ("pytorchddp", "AWS's"): Outcome(launcher="mpi", ranks=2, backend="gloo"),
    ("pytorchddp", "ours"): _TORCHRUN,
    ("smdistributed.dataparallel", "AWS's"): Outcome(launcher="mpi", ranks=2, backend="smddp"),
    ("smdistributed.dataparallel", "ours"): Outcome(launcher="torchrun", ranks=2, backend="smddp"),
    ("mpi", "AWS's"): Outcome(launcher="mpi", ranks=4, backend="gloo"),
    ("mpi", "ours"): Outcome(launcher="mpi", ranks=4, backend="gloo"),
    ("parameter_server", "AWS's"): _ALONE,
    ("parameter_server", "ours"): _TORCHRUN,
    ("plain", "AWS's"): _ALONE,
    ("plain", "ours"): _ALONE,
}
"""In every place, but for what is refused there."""

_REFUSED = {
    Cell(distribution="mpi", toolkit="ours", place="processes"): Outcome(
        refused="hosts that are processes of one machine have no ssh of their own, which mpi needs between hosts. Use "
        "distribution='torchrun' or no distribution (smddp.run joins the hosts, one rank on each), or one instance, or "
        "containers as hosts: LocalSageMaker(executor=Docker())."
    )
}

EXPECTED: Mapping[Cell, Outcome] = {cell: _REFUSED.get(cell, _WORKS[cell.distribution, cell.toolkit]) for cell in CELLS}
"""What the table of docs/reference/distributions.md is made of; a test proves each by a job."""


def _in_containers(distribution: str, toolkit: Toolkit) -> Cell:
    return Cell(distribution=distribution, toolkit=toolkit, place="Docker executor")


INTERRUPTED = tuple(
    _in_containers(distribution, toolkit) for toolkit in TOOLKITS for distribution in ("torch_distributed", "mpi")
)
HOST_KILLED = _in_containers("pytorchddp", "ours")
RANK_KILLED = _in_containers("smdistributed.dataparallel", "ours")
WITH_SERVER = _in_containers("parameter_server", "ours")
FIT_AGAIN = Cell(distribution="torch_distributed", toolkit="ours", place="Local Mode")

PROVEN_WITH_MORE = {*INTERRUPTED, HOST_KILLED, RANK_KILLED, WITH_SERVER, FIT_AGAIN}
"""Cells whose jobs prove something else, too, each in a test of that name: no second, undisturbed job runs for them."""
