"""When the launcher began, as a rank knows it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from smddp.process.launch_time import launch_variables, launched
from smddp.process.process_tree import age


def test_a_launcher_tells_its_ranks_when_it_began() -> None:
    assert launched(launch_variables()) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)


def test_without_a_launcher_it_is_the_process_itself() -> None:
    assert launched({}) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)
    assert launched({"SMDDP_LAUNCHED": "yesterday"}) == pytest.approx(launched({}), abs=0.1)


def test_a_rank_of_stock_torchrun_takes_its_parent() -> None:
    program = "from smddp.process.launch_time import launched; import os; print(launched(os.environ))"
    environ = {**os.environ, "TORCHELASTIC_RUN_ID": "run"}
    told = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert float(told.stdout) == pytest.approx(time.time() - age(os.getpid()), abs=0.1)
