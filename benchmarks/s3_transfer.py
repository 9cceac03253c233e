"""How fast a checkpoint goes to S3 and comes back: smddp, s5cmd and boto3, classic and with the CRT.

All speak to the same server, SeaweedFS on this machine with its objects in memory: the network and the disk cost
nothing here, so what remains is what the clients and the server cost. Each transfer is a process of its own, each turn
has a fresh server and another order, and the contenders are compared within a turn: a machine that is busy for a while
is busy for all. The peers transfer a file in memory (/dev/shm), smddp memory itself, as it does with a checkpoint.
What it takes to start, import and connect does not count, but for s5cmd, where it takes milliseconds. A directory
needs six times the size.

    python benchmarks/s3_transfer.py [--megabytes 2000] [--repeats 5] [--directory /dev/shm]

Target: at least 0.9 × the fastest of the others, up and down.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import distribution
from pathlib import Path

import boto3
import numpy as np

from estimators.local.api.signature import KeyPair
from estimators.local.storage import SeaweedFS
from smddp.checkpoint.stores.s3 import S3Store

BUCKET, KEY = "checkpoints", "content"
STEP, ATTEMPT, NAME = 1, "0123456789ab-0001", "model.safetensors"
CONTENDERS = ("smddp", "s5cmd", "boto3 classic", "boto3 CRT")


def smddp(direction: str, path: Path) -> float:
    store = S3Store(f"s3://{BUCKET}/runs")
    store.steps()
    if direction == "up":
        with path.open("rb") as file:
            memory = np.fromfile(file, dtype=np.uint8)
        return timed(lambda: store.write(STEP, ATTEMPT, NAME, [memoryview(memory)]))
    size = store.size(STEP, ATTEMPT, NAME) or 0
    content = mmap.mmap(-1, size)  # fresh memory, as a load's
    seconds = timed(lambda: store.read_into(STEP, ATTEMPT, NAME, 0, memoryview(content)))
    path.write_bytes(content)
    return seconds


def s5cmd(direction: str, path: Path) -> float:
    program = next(
        file for file in distribution("s5cmd").files or [] if file.name == "s5cmd" and "bin" in file.parts[-2]
    )
    place = f"s3://{BUCKET}/{KEY}"
    ends = [str(path), place] if direction == "up" else [place, str(path)]
    command = [str(program.locate()), "--endpoint-url", os.environ["AWS_ENDPOINT_URL_S3"], "cp", *ends]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def boto3_classic(direction: str, path: Path) -> float:
    s3 = boto3.client("s3")
    s3.list_buckets()
    if direction == "up":
        return timed(lambda: s3.upload_file(str(path), BUCKET, KEY))
    return timed(lambda: s3.download_file(BUCKET, KEY, str(path)))


def boto3_crt(direction: str, path: Path) -> float:
    # What preferred_transfer_client="crt" uses; boto3 itself would send it to AWS (boto/boto3#4839).
    import botocore.session
    from s3transfer.crt import (
        BotocoreCRTCredentialsWrapper,
        BotocoreCRTRequestSerializer,
        CRTTransferManager,
        create_s3_crt_client,
    )

    session, region = botocore.session.get_session(), os.environ["AWS_REGION"]
    credentials = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    endpoint = {"region_name": region, "endpoint_url": os.environ["AWS_ENDPOINT_URL_S3"]}
    manager = CRTTransferManager(
        create_s3_crt_client(region, credentials, use_ssl=False), BotocoreCRTRequestSerializer(session, endpoint)
    )
    if direction == "up":
        return timed(lambda: manager.upload(str(path), BUCKET, KEY).result())
    return timed(lambda: manager.download(BUCKET, KEY, str(path)).result())


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


@contextmanager
def server(directory: Path) -> Iterator[dict[str, str]]:
    """Run a fresh server, and give what one needs to find it."""
    keys = KeyPair.random()
    (directory / "run").mkdir(parents=True)
    storage = SeaweedFS(data=directory / "data", run=directory / "run", keys=keys, isolated=False)
    try:
        storage.launch()
        storage.wait_until_ready()
        yield {
            "AWS_ENDPOINT_URL_S3": storage.process.endpoint_url,
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        storage.close()


def measure(contenders: Sequence[str], path: Path, parent: Path) -> dict[tuple[str, str], float]:
    """Let each send a file to a fresh server and fetch it again; seconds by direction and contender."""
    seconds, back = {}, path.with_suffix(".back")
    with tempfile.TemporaryDirectory(dir=parent) as directory, server(Path(directory)) as environ:
        os.environ.update(environ)
        s3 = boto3.session.Session().client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="warm-up", Body=bytes(2**26))
        for contender in contenders:
            for direction, file in ("up", path), ("down", back):
                command = [sys.executable, __file__, "--transfer", contender, direction, str(file)]
                child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                seconds[direction, contender] = float(child.stdout)
                print(".", end="", file=sys.stderr, flush=True)
            if subprocess.run(["cmp", str(path), str(back)], check=False).returncode:
                raise SystemExit(f"{contender} did not bring back what it sent")
            back.unlink()
    return seconds


def main(megabytes: int, repeats: int, parent: Path) -> None:
    size = megabytes * 10**6
    speeds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="s3-benchmark-", dir=parent) as directory:
        path = Path(directory) / "content"
        with path.open("wb") as file:
            file.write(np.random.default_rng(0).bytes(size))
        for turn in range(repeats):
            order = CONTENDERS[turn % 4 :] + CONTENDERS[: turn % 4]
            for key, seconds in measure(order, path, Path(directory)).items():
                speeds.setdefault(key, []).append(size / seconds / 1e6)
    print(file=sys.stderr)
    print(f"{megabytes} MB, {date.today()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; MB/s\n")
    print(f"{'':14} {'up':>7} {'best':>7} {'down':>7} {'best':>7}")
    for contender in CONTENDERS:
        columns = [
            f"{figure(speeds[direction, contender]):7.0f}"
            for direction in ("up", "down")
            for figure in (statistics.median, max)
        ]
        print(f"{contender:14} {' '.join(columns)}")
    for direction in "up", "down":
        fastest = max(CONTENDERS[1:], key=lambda name: statistics.median(speeds[direction, name]))
        turns = zip(speeds[direction, "smddp"], speeds[direction, fastest], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in turns)
        print(
            f"\n{direction}: {ratio:.2f} × the fastest of the others, {fastest}, in the same turn; target 0.9", end=""
        )
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--transfer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.transfer:
        name, direction, file = options.transfer
        transfer = {"smddp": smddp, "s5cmd": s5cmd, "boto3 classic": boto3_classic, "boto3 CRT": boto3_crt}[name]
        print(transfer(direction, Path(file)))
    else:
        main(options.megabytes, options.repeats, options.directory)
