"""Import times in fresh interpreters: ours against ``import sagemaker.pytorch`` and ``import torch``.

All kinds take turns in one run; the time is the statement's own, without the interpreter's start. What must not be
loaded is checked, too: a light import that pulls in torch would be light only until the first use.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

PROGRAM = """
import json, sys, time
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
print(json.dumps({{"seconds": seconds, "loaded": [name for name in {heavy!r} if name in sys.modules]}}))
"""
HEAVY = ("torch", "boto3", "sagemaker", "moto", "numpy")
THEIRS = "import sagemaker.pytorch"
FORBIDDEN = {
    "import smddp": {"torch", "boto3", "sagemaker", "moto", "numpy"},
    "import estimators": {"torch", "boto3", "sagemaker", "moto", "numpy"},
    "from estimators import Estimator": {"torch", "boto3", "sagemaker", "moto", "numpy"},
    THEIRS: set(),
    "import torch": set(),
}
TARGET = 0.1


def measure(statement: str) -> tuple[float, set[str]]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement, heavy=HEAVY)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
    )
    answer = json.loads(result.stdout.splitlines()[-1])
    return answer["seconds"], set(answer["loaded"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()

    seconds: dict[str, list[float]] = {statement: [] for statement in FORBIDDEN}
    for repeat in range(arguments.repeats + 1):
        for statement, forbidden in FORBIDDEN.items():
            took, loaded = measure(statement)
            assert not loaded & forbidden, f"{statement} loads {', '.join(sorted(loaded & forbidden))}"
            if repeat:  # the first round warms the disk's cache
                seconds[statement].append(took)
    theirs = statistics.median(seconds[THEIRS])
    for statement, values in seconds.items():
        median = statistics.median(values)
        print(f"{statement:<34} {median * 1000:8.1f} ms  {median / theirs:6.3f} × {THEIRS}")
    print(f"target: `import estimators` at most {TARGET} × `{THEIRS}`")


if __name__ == "__main__":
    main()
