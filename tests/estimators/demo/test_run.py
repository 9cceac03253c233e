"""What ``smddp demo`` leaves behind and says when its job fails. That it does not is what `make demo` shows."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from estimators.demo import run
from estimators.job_handle.events import JobEvent, StatusChange
from estimators.log_reader import LogLine

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


def test_the_status_of_the_job_is_shown_from_the_stop_to_the_resume() -> None:
    interrupted, waits = list[str](), list[str]()

    class Job:
        name, status = "smddp-demo", "Completed"

        def events(self) -> Iterator[JobEvent]:
            for told in (
                "Training",
                "step=120 epoch=2/4 loss=0.5",
                "Interrupted",
                "stopped at step 130, in epoch 2",
                "Starting",
                "Training",
                "resumed at step 130, in epoch 2",
                "step=140 epoch=2/4 loss=0.4",
                "Uploading",
                "Completed",
            ):
                if " " in told:
                    yield LogLine(host="algo-1", timestamp=0, message=told)
                else:
                    yield StatusChange(time=datetime.now(timezone.utc), status=told, message="")

        def wait(self, *, logs: bool) -> None: ...

    class Platform:
        interrupt = staticmethod(interrupted.append)

    output, platform, job = io.StringIO(), Platform(), Job()
    fakes: Any = (platform, job)
    run._follow(
        Console(file=output, width=200),
        time.monotonic(),
        *fakes,
        run.DemoState(),
        epochs=4,
        images=1797,
        tell_wait=waits.append,
    )
    assert [line.split(" s  ", 1)[1] for line in output.getvalue().splitlines()] == [
        "spot interruption: both hosts are told to go, after step 120",
        "job Interrupted",
        "stopped at step 130, in epoch 2",
        "job Starting",
        "job Training",
        "resumed at step 130, in epoch 2",
        "job Completed",
    ]
    assert interrupted == ["smddp-demo"]
    statuses = ["Training", "Interrupted", "Starting", "Training", "Uploading"]
    assert waits == [*(f"the job is {status}" for status in statuses), "the demo collects the results"]
