"""Runs `smddp demo` again and again, and counts how it ended.

    python -m tests.torture.demos [--demos 300] [--together 2] [--epochs 8]

Each demo is what a user starts: a platform of its own, two hosts, a spot interruption, a resume. Its Pythons are forked
from one that has imported torch, which saves half of the time, and its ranks end as Python does. A rank that aborts
when its training is done fails the job, and the demo. Exits with 1 if one failed, and leaves its directory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fork_python import ForkPython

_SECONDS = 600.0


def ends_well(program: Path, directory: Path, epochs: int) -> bool:
    """Run one; leave its directory, with what it said in `demo.log`, if it failed."""
    directory.mkdir()
    command = [program, "demo", "--output", directory, "--epochs", str(epochs)]
    with (directory / "demo.log").open("w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = None
    if code == 0:
        shutil.rmtree(directory)
        return True
    print(f"{directory.name} ended with {code}: {directory}", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.demos", allow_abbrev=False)
    parser.add_argument("--demos", type=int, default=300)
    parser.add_argument("--together", type=int, default=2, help="demos side by side")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="smddp-demos-"))
    os.environ["FORK_PYTHON_FINALIZES"] = "1"
    python = ForkPython(directory / "python")
    program = Path(python.programs) / "smddp"
    started, good = time.monotonic(), 0
    with ThreadPoolExecutor(arguments.together) as pool:
        places = (directory / f"demo-{number}" for number in range(1, arguments.demos + 1))
        for done, well in enumerate(
            pool.map(lambda place: ends_well(program, place, arguments.epochs), places), start=1
        ):
            good += well
            if done % 10 == 0 or done == arguments.demos:
                print(f"{done} demos, {done - good} failed, {time.monotonic() - started:.0f} s", flush=True)
    python.close()
    if good == arguments.demos:
        shutil.rmtree(directory)
    sys.exit(good < arguments.demos)


if __name__ == "__main__":
    main()
