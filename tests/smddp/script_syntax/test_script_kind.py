"""A script sends a job if every run of it calls ``fit`` of an Estimator, and no module of it may train."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.script_syntax import Modules, executed, only_sends, only_trains

TRAINING = "import smddp\n\ndef main(job: smddp.Job): ...\n\nif __name__ == '__main__':\n    smddp.run(main)\n"
SENDING = "from estimators import Estimator\nestimator = Estimator('train.py')\nestimator.fit()\n"
IN_MAIN = """
import argparse
import estimators
from estimators.local import LocalSageMaker

def main():
    argparse.ArgumentParser().parse_args()
    with LocalSageMaker() as platform:
        job = estimators.Estimator("train.py", sagemaker_session=platform.session).fit(wait=False)

if __name__ == "__main__":
    main()
"""
RANK_ZERO = "@rank_zero_only\ndef send(): estimator.fit()\nsend()"
IN_JOB = """
import os, sys

def train():
    if "SM_MODEL_DIR" in os.environ:
        sys.exit(0)

train()
estimator.fit()
"""
EXIT_OF_MAIN = IN_MAIN.replace("    main()\n", "    import sys\n    sys.exit(main())\n")


def kind(directory: Path, script: str) -> tuple[int | None, bool]:
    """Return the line that sends a job, and whether the script only trains."""
    path = directory / "script.py"
    path.write_text(script)
    modules = Modules(path=path, directories=[directory], named={})
    nodes = executed(modules)
    return only_sends(modules, nodes), only_trains(modules, nodes)


@pytest.mark.parametrize(("script", "line"), [(SENDING, 3), (IN_MAIN, 9), (EXIT_OF_MAIN, 9)])
def test_a_script_whose_every_run_calls_fit_only_sends(tmp_path: Path, script: str, line: int) -> None:
    assert kind(tmp_path, script) == (line, False)


def test_a_script_whose_every_run_calls_run_only_trains(tmp_path: Path) -> None:
    assert kind(tmp_path, TRAINING) == (None, True)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(f"from estimators import Estimator\n{TRAINING}", id="imports it only"),
        pytest.param(f"{SENDING.replace('estimator.fit()', 'def send(): estimator.fit()')}", id="never called"),
        pytest.param(TRAINING + SENDING, id="trains, then sends"),
        pytest.param("import torch\n" + SENDING, id="may train by torch"),
        pytest.param("import lib\n" + SENDING, id="may train in a module of its own"),
        pytest.param("import jax\n" + SENDING, id="may train by another package"),
        pytest.param("import importlib\n" + SENDING, id="may import what trains"),
        pytest.param(SENDING.replace("estimator.fit()", RANK_ZERO), id="a decorator calls it on one rank"),
        pytest.param(SENDING.replace("estimator.fit()", IN_JOB), id="a called function may end the run before"),
        pytest.param(SENDING.replace("estimator.fit()", "x or os._exit(0)\nestimator.fit()"), id="ends before"),
        pytest.param(SENDING.replace("estimator.fit()", "if x:\n    estimator.fit()"), id="one rank sends"),
        pytest.param(SENDING.replace("estimator.fit()", "estimator.plan()"), id="sends nothing"),
        pytest.param(SENDING.replace("estimator.fit()", "estimator = SVC()\nestimator.fit()"), id="another's fit"),
        pytest.param(SENDING.replace("estimator.fit()", "def f(estimator): estimator.fit()\nf(SVC())"), id="argument"),
        pytest.param(SENDING.replace("from estimators", "from sklearn"), id="another Estimator"),
    ],
)
def test_a_script_that_may_train_or_not_send_is_of_neither_kind(tmp_path: Path, script: str) -> None:
    (tmp_path / "lib.py").write_text("import torch\n")
    assert kind(tmp_path, script) == (None, False)


def test_a_package_of_the_users_own_named_estimators_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "estimators.py").write_text("class Estimator: ...\n")
    assert kind(tmp_path, SENDING) == (None, False)
