"""One script, unchanged: every distribution, both toolkits, as processes, as local jobs, in the Docker executor.

The jobs of some cells are in the tests of what else they prove: stops (test_stops.py), servers
(test_parameter_server.py), a second ``fit()`` (tests/estimators/local_mode/test_fit.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.errors import EstimatorError
from estimators.local import LocalSageMaker
from tests.docker import table
from tests.docker.cells import CELLS, EXPECTED, PROVEN_WITH_MORE, Cell, Place
from tests.docker.jobs import estimator, log_of, start, write_digits
from tests.docker.proof import Proof


def docker_job(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that runs whole jobs."""
    return pytest.mark.docker(pytest.mark.slow(pytest.mark.timeout(600)(test)))


def cells_of(place: Place) -> list[Cell]:
    """Those that are proven here; first those after which AWS's toolkit sleeps, so that others run meanwhile."""
    cells = [cell for cell in CELLS if cell.place == place and cell not in PROVEN_WITH_MORE]
    return sorted(cells, key=lambda cell: not (cell.toolkit == "AWS's" and EXPECTED[cell].launcher == "mpi"))


def test_the_page_says_what_is_expected() -> None:
    assert table.in_page() == table.render(), "python -m tests.docker.table puts the table into the page"


@pytest.mark.parametrize("cell", cells_of("Docker executor"), ids=str)
@docker_job
def test_trains_in_the_docker_executor(cell: Cell, platform: LocalSageMaker, proof: Proof) -> None:
    job = start(platform, cell)
    job.wait(logs=False)
    proof.check(cell, log_of(job))


@pytest.mark.parametrize("cell", cells_of("Local Mode"), ids=str)
@docker_job
@pytest.mark.usefixtures("images")
def test_trains_in_local_mode(cell: Cell, proof: Proof, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    write_digits(tmp_path / "data" / "digits.npz")
    estimator(
        cell,
        instance_type="local",
        output_path=f"file://{tmp_path}/output",
        checkpoint_s3_uri=f"file://{tmp_path}/checkpoints",
    ).fit({"training": f"file://{tmp_path}/data"})
    proof.check(cell, capsys.readouterr().out)


@docker_job  # no container, but the jobs that its losses are compared with
def test_trains_as_processes_or_is_refused(proof: Proof) -> None:
    with LocalSageMaker() as platform:
        for cell in cells_of("processes"):  # one after the other: they meet at SageMaker's fixed port
            if EXPECTED[cell].refused:
                with pytest.raises(EstimatorError) as failure:
                    start(platform, cell)
                (problem,) = failure.value.problems
                assert f"{problem.found}. {problem.remedy}" == EXPECTED[cell].refused
            else:
                job = start(platform, cell)
                job.wait(logs=False)
                proof.check(cell, log_of(job))
