"""Seconds from a job's end to fit()'s return: ``Estimator.fit()`` against ``sagemaker.pytorch.PyTorch.fit()``.

Both submit the same trivial script to the same embedded SageMaker, in turn, in one run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from estimators import Estimator
from estimators.local import LocalSageMaker

SCRIPT = "import time; time.sleep({seconds}); print('done')\n"


def seconds_after_the_end(platform: LocalSageMaker, fit: Callable[[str], object], name: str) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        fit(name)
    returned = time.time()
    job = platform.boto_session.client("sagemaker").describe_training_job(TrainingJobName=name)
    return returned - job["SecondaryStatusTransitions"][-1]["StartTime"].timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long the script sleeps")
    arguments = parser.parse_args()

    from sagemaker.pytorch import PyTorch

    with tempfile.TemporaryDirectory() as directory, LocalSageMaker() as platform:
        (Path(directory) / "sleep.py").write_text(SCRIPT.format(seconds=arguments.seconds))
        common = {
            "entry_point": "sleep.py",
            "source_dir": directory,
            "role": platform.role,
            "instance_type": "ml.g5.xlarge",
            "instance_count": 1,
            "framework_version": "2.8.0",
            "py_version": "py312",
            "sagemaker_session": platform.session,
        }
        fits: dict[str, Callable[[str], object]] = {
            "Estimator.fit()": lambda name: Estimator(**common).fit(job_name=name),
            "PyTorch.fit()": lambda name: PyTorch(**common, debugger_hook_config=False, disable_profiler=True).fit(
                job_name=name, logs="All"
            ),
        }
        seconds: dict[str, list[float]] = {kind: [] for kind in fits}
        for repeat in range(arguments.repeats):
            for number, (kind, fit) in enumerate(fits.items()):
                seconds[kind].append(seconds_after_the_end(platform, fit, f"latency-{number}-{repeat}"))
    ours, theirs = (statistics.median(seconds[kind]) for kind in fits)
    for kind, values in seconds.items():
        print(f"{kind:<18} returns {statistics.median(values):6.2f} s after the job's end (worst {max(values):.2f})")
    print(f"ratio {ours / theirs:.3f}; target: at most 1 s")


if __name__ == "__main__":
    main()
