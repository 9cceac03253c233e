"""Counts to --target; SIGTERM leaves the count in the checkpoint directory and ends with 75. No smddp, no torch."""

import argparse
import os
import pathlib
import signal
import sys
import time

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--target", type=int, default=10_000)
parser.add_argument("--wait_at", type=int, help="the count at which to wait for SIGTERM")
arguments = parser.parse_args()

stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
checkpoints = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "checkpoints")
checkpoints.mkdir(exist_ok=True)
state = checkpoints / "count"
count = int(state.read_text()) if state.exists() else 0
print(f"counting from {count} to {arguments.target}", flush=True)
while count < arguments.target:
    count += 1
    print(f"count={count}", flush=True)
    time.sleep(0.02)
    while count == arguments.wait_at and not stopping:
        time.sleep(0.02)
    if stopping:
        state.write_text(str(count))
        print(f"stopped at {count}", flush=True)
        sys.exit(75)
pathlib.Path(os.environ["SM_MODEL_DIR"], "count").write_text(str(count))
