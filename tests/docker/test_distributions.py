"""One script, unchanged: every distribution, both toolkits, as processes, in the SDK's Local Mode, in containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker import table
from tests.docker.cells import CELLS, Cell, Outcome, read
from tests.docker.images import Images
from tests.docker.lanes import LANES

RESULTS = "SMDDP_DISTRIBUTIONS"
"""Names a file that is to keep the outcomes, for ``python -m tests.docker.table``."""

WORKS = {
    ("torch_distributed", "AWS's"): "torchrun, 2 ranks, gloo",
    ("torch_distributed", "ours"): "torchrun, 2 ranks, gloo",
    ("pytorchddp", "AWS's"): "mpi, 2 ranks, gloo",
    ("pytorchddp", "ours"): "torchrun, 2 ranks, gloo",
    ("smdistributed.dataparallel", "AWS's"): "mpi, 2 ranks, smddp",
    ("smdistributed.dataparallel", "ours"): "torchrun, 2 ranks, smddp",
    ("mpi", "AWS's"): "mpi, 4 ranks, gloo",
    ("mpi", "ours"): "mpi, 4 ranks, gloo",
    ("parameter_server", "AWS's"): "sagemaker, 2 ranks, gloo",
    ("parameter_server", "ours"): "torchrun, 2 ranks, gloo",
    ("plain", "AWS's"): "sagemaker, 2 ranks, gloo",
    ("plain", "ours"): "sagemaker, 2 ranks, gloo",
}
"""In every place that is not in `REFUSED`."""

REFUSED = {("mpi", "ours", "processes"): "a host is 127.x.x.x: hosts that are processes of one machine have no ssh"}
"""How the reason begins."""


@pytest.fixture(scope="module")
def outcomes(images: Images, tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    results = Path(os.environ.get(RESULTS) or tmp_path_factory.mktemp("distributions") / "results.jsonl").absolute()
    logs = tmp_path_factory.mktemp("lanes")
    lanes = {}
    for name in LANES:
        with (logs / name).open("w") as log:
            command = [sys.executable, "-m", "tests.docker.lanes", name, str(results)]
            lanes[name] = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=log, stderr=log)
    try:
        codes = {name: lane.wait() for name, lane in lanes.items()}
    finally:
        for lane in lanes.values():
            lane.terminate()
    broken = {name: (logs / name).read_text()[-6000:] for name, code in codes.items() if code != 0}
    assert not broken, "\n\n".join(f"{name}:\n{log}" for name, log in broken.items())
    return read(results)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_script_runs_everywhere_to_the_same_bits_and_the_page_says_so(outcomes: dict[Cell, Outcome]) -> None:
    assert outcomes.keys() == set(CELLS)
    for cell, outcome in outcomes.items():
        refused = REFUSED.get((cell.distribution, cell.toolkit, cell.place))
        if refused is None:
            assert outcome.summary == WORKS[cell.distribution, cell.toolkit], cell
        else:
            assert outcome.refused.startswith(refused), cell
    losses = {(outcome.ranks, outcome.loss) for outcome in outcomes.values() if not outcome.refused}
    assert sorted(ranks for ranks, _ in losses) == [2, 4], losses
    assert table.in_page() == table.render(outcomes), f"{RESULTS}=FILE keeps the outcomes for tests.docker.table"
