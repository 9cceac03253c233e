"""What ``smddp demo`` leaves behind and says when its job fails. That it does not is what `make demo` shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from estimators.demo import run

run.entrypoints_directory = lambda: Path(sys.argv[1])
run.tell(Path(sys.argv[2]), epochs=4)
"""


@pytest.mark.slow
def test_a_failed_job_leaves_its_log_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "image_classification.py"
    script.write_text("print('the last words', flush=True)\nraise SystemExit(3)\n")
    arguments = (str(script.parent), str(tmp_path / "output"))
    demo = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=110
    )

    assert demo.returncode == 1, demo.stderr
    [log] = (tmp_path / "output").glob("smddp-demo-*.log")
    line = demo.stderr.strip().splitlines()[-1]
    assert line.startswith(f"smddp demo: {log.stem} failed: ")
    assert line.endswith(f"Its log: {log}")
    assert "Traceback" not in demo.stderr
    assert "the last words" in log.read_text()
