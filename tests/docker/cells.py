"""The cells of the matrix: a distribution, the toolkit in the image, where the job runs; and what became of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
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


CELLS = tuple(
    Cell(distribution=distribution, toolkit=toolkit, place=place)
    for distribution in DISTRIBUTIONS
    for toolkit in TOOLKITS
    for place in PLACES
    if not (toolkit == "AWS's" and place == "processes")
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    cell: Cell
    refused: str = ""
    """Why; empty if the job trained."""
    launcher: str = ""
    """What the ranks say that started them."""
    backend: str = ""
    ranks: int = 0
    loss: str = ""
    """In hexadecimal: every bit."""

    @property
    def summary(self) -> str:
        """All but the loss, in a few words."""
        return self.refused or f"{self.launcher}, {self.ranks} ranks, {self.backend}"


def outcome(cell: Cell, *, refused: str | None, log: str) -> Outcome:
    """What became of a job, by what it was refused for, or by the line that the script prints at its end."""
    if refused is not None:
        reason = refused.removeprefix("AlgorithmError: ").rpartition(", exit code: ")[0] or refused
        reason = re.sub(r"\balgo-\d is 127(\.\d+){3}", "a host is 127.x.x.x", reason)  # the first that says so
        return Outcome(cell=cell, refused=" ".join(reason.split()))
    told = [line.partition("digits {")[2] for line in log.splitlines() if "digits {" in line]
    assert len(told) == 1, f"{cell}: {len(told)} ranks told of the end:\n{log}"
    # Docker carries the two streams apart: what was written to the other may follow in the same line.
    return Outcome(cell=cell, **json.JSONDecoder().raw_decode("{" + told[0])[0])


def append(result: Outcome, path: Path) -> None:
    """One line, in one write: several processes may write to the file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path) -> dict[Cell, Outcome]:
    """The newest outcome of each cell."""
    return {result.cell: result for result in _outcomes(path)}


def _outcomes(path: Path) -> Iterator[Outcome]:
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        yield Outcome(**{**fields, "cell": Cell(**fields["cell"])})
