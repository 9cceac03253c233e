"""Channels in Pipe mode: what comes out of the pipes, and that nothing waits for ever."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.instance_groups import InstanceGroup, name_hosts
from estimators.local.engine.transfers import objects
from estimators.local.engine.transfers import pipes as module
from estimators.local.engine.transfers.pipes import Pipes
from tests.estimators.local.engine.transfers.breaking_s3 import Breaking
from tests.estimators.local.engine.whole_jobs import channel_of

LARGE = bytes(range(256)) * (1 << 14)  # 4 MiB: more than any pipe holds


class Harness:
    """One channel, `train`, of all objects below data/."""

    def __init__(self, s3: Any, bucket: str, directory: Path) -> None:
        self.s3, self.bucket = s3, bucket
        self.hosts = name_hosts((InstanceGroup(name="all", instance_type="ml.m5.large", count=2),))
        self.roots = {host.name: directory / host.name for host in self.hosts}
        for root in self.roots.values():
            (root / "input" / "data").mkdir(parents=True)
        self.trees = {host: HostTree(root) for host, root in self.roots.items()}
        self.failures: list[str] = []

    def put(self, **objects: bytes) -> None:
        for name, body in objects.items():
            self.s3.put_object(Bucket=self.bucket, Key=f"data/{name}", Body=body)

    def path(self, epoch: int, host: str = "algo-1") -> Path:
        return self.roots[host] / "input" / "data" / f"train_{epoch}"

    def open(self, epoch: int = 0, host: str = "algo-1") -> Any:
        path, deadline = self.path(epoch, host), time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, f"{path.name} does not come"
            time.sleep(0.005)
        return path.open("rb", buffering=0)

    def read(self, epoch: int = 0, host: str = "algo-1") -> bytes:
        with self.open(epoch, host) as pipe:
            return b"".join(iter(lambda: pipe.read(1 << 16), b""))


@pytest.fixture
def harness(s3: Any, bucket: str, tmp_path: Path) -> Harness:
    return Harness(s3, bucket, tmp_path / "hosts")


@pytest.fixture
def serve(harness: Harness) -> Iterator[Callable[..., Pipes]]:
    with contextlib.ExitStack() as stack:

        def start(**parameters: Any) -> Pipes:
            channel = channel_of(harness.bucket, mode="Pipe", **parameters)
            pipes = Pipes(harness.s3, channel, harness.hosts, harness.trees, failed=harness.failures.append)
            stack.callback(pipes.close)
            pipes.open()
            return pipes

        yield start


def test_an_epoch_is_all_objects_in_order_and_another_follows(harness: Harness, serve: Any) -> None:
    harness.put(b=b"second", a=b"first ", c=LARGE, d=b"")
    serve()
    for epoch in range(3):
        assert harness.read(epoch) == b"first second" + LARGE
        assert not harness.path(epoch).exists()
    assert harness.read(0, "algo-2") == b"first second" + LARGE
    assert not harness.failures


def test_the_next_pipe_is_there_before_the_end_of_the_last_is_seen(harness: Harness, serve: Any) -> None:
    harness.put(a=b"data")
    serve()
    for epoch in range(20):
        harness.read(epoch)
        assert harness.path(epoch + 1).exists()


def test_who_closes_early_gets_the_next_epoch_from_its_beginning(harness: Harness, serve: Any) -> None:
    harness.put(a=LARGE)
    serve()
    with harness.open(0) as pipe:
        assert pipe.read(10) == LARGE[:10]
    assert harness.read(1) == LARGE


def test_a_seed_shuffles_each_epoch_in_another_way_the_same_in_every_run(harness: Harness, serve: Any) -> None:
    harness.put(**{chr(97 + number): bytes([97 + number]) for number in range(20)})
    serve(seed=5)
    epochs = [harness.read(epoch) for epoch in range(3)]
    assert len(set(epochs)) == 3
    assert {bytes(sorted(epoch)) for epoch in epochs} == {bytes(range(97, 117))}
    assert [harness.read(epoch, "algo-2") for epoch in range(3)] == epochs


def test_shards_are_dealt_anew_each_epoch_if_there_is_a_seed(harness: Harness, serve: Any) -> None:
    harness.put(**{chr(97 + number): bytes([97 + number]) for number in range(21)})
    serve(sharded=True, seed=5)
    shares = [(harness.read(epoch), harness.read(epoch, "algo-2")) for epoch in range(3)]
    assert {bytes(sorted(one + two)) for one, two in shares} == {bytes(range(97, 118))}
    assert {len(one) for one, _ in shares} == {11}
    assert len({bytes(sorted(one)) for one, _ in shares}) == 3


def test_records_are_framed_as_recordio(harness: Harness, serve: Any) -> None:
    bodies = [b"", b"x", b"four", b"fives"]
    harness.put(**{f"o{number}": body for number, body in enumerate(bodies)})
    serve(recordio=True)
    assert records(harness.read()) == bodies


def records(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        magic, size = struct.unpack_from("<II", stream)
        assert magic == 0xCED7230A
        found.append(stream[8 : 8 + size])
        assert stream[8 + size : 8 + size + -size % 4] == bytes(-size % 4)
        stream = stream[8 + size + -size % 4 :]
    return found


AUGMENTED: dict[str, Any] = {"prefix": "data/lines", "attributes": ("image-ref", "label")}


def write_lines(harness: Harness, count: int) -> list[bytes]:
    """An augmented manifest, and what its lines are to be sent as."""
    images = {f"image{number}": b"image" + bytes([97 + number]) * number for number in range(count)}
    lines = [
        {"other": 1, "label": {"is": number}, "image-ref": f"s3://{harness.bucket}/data/image{number}"}
        for number in range(count)
    ]
    harness.put(lines="\n".join(map(json.dumps, lines)).encode() + b"\r\n\n", **images)
    return [part for number, image in enumerate(images.values()) for part in (image, b'{"is": %d}' % number)]


def test_an_augmented_manifest_sends_objects_and_values_line_by_line(harness: Harness, serve: Any) -> None:
    sent = write_lines(harness, 12)
    serve(**AUGMENTED)
    assert [harness.read(epoch) for epoch in range(2)] == [b"".join(sent)] * 2


def test_its_attributes_are_records_and_its_lines_are_dealt_out_and_shuffled(harness: Harness, serve: Any) -> None:
    sent = write_lines(harness, 12)
    serve(**AUGMENTED, recordio=True, sharded=True, seed=5)
    epochs = [[records(harness.read(epoch, host)) for host in harness.roots] for epoch in range(2)]
    for one, two in epochs:
        assert len(one) == len(two) == len(sent) / 2
        pairs = list(zip((one + two)[::2], (one + two)[1::2], strict=True))
        assert sorted(pairs) == sorted(zip(sent[::2], sent[1::2], strict=True))
    assert epochs[0] != epochs[1]


def test_a_text_is_sent_as_it_is(harness: Harness, serve: Any) -> None:
    harness.put(lines='{"label": "ü\\n", "n": [1, "a"]}'.encode())
    serve(prefix="data/lines", attributes=("label", "n"))
    assert harness.read().decode() == 'ü\n[1, "a"]'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "the manifest has no lines"),
        ('{"label": 1, "image-ref": "s3://b/a"}\n\n{', "line 3 is no JSON"),
        pytest.param("[" * 100_000, "line 1 is no JSON", id="deep"),
        ("7", "line 1 is no JSON object but of the type int; write one a line"),
        ('{"image-ref": "s3://b/a", "odd": 1}', "line 1 has no label, .* its attributes are image-ref, odd"),
        ('{"label": 1, "image-ref": "b/a"}', "line 1: 'b/a' is not of the form s3://bucket/prefix"),
        ('{"label": 1, "image-ref": "s3://b"}', "line 1: image-ref is s3://b/, which is a bucket; name an object"),
        ('{"label": "\\ud800", "image-ref": "s3://b/a"}', "line 1: .*surrogates not allowed"),
        ('{"label": 1, "image-ref": "s3://b/\\ud800"}', "line 1: .*surrogates not allowed"),
    ],
)
def test_an_augmented_manifest_that_can_not_be_sent_is_refused_before_the_program_runs(
    harness: Harness, serve: Any, lines: str, said: str
) -> None:
    harness.put(lines=lines.encode())
    with pytest.raises(FailedJobError, match=f'ClientError: .*channel "train": s3://.*/data/lines: {said}'):
        serve(**AUGMENTED)


def test_gzip_objects_come_out_as_they_were(harness: Harness, serve: Any) -> None:
    harness.put(a=gzip.compress(bytes(5 << 20)) + gzip.compress(b"another member"), b=gzip.compress(LARGE))
    serve(gzip=True)
    assert harness.read() == bytes(5 << 20) + b"another member" + LARGE


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"no gzip at all", "is no gzip file"), (gzip.compress(LARGE)[:1000], "cut off"), (b"", "cut off")],
)
def test_what_is_no_gzip_fails_with_its_name(harness: Harness, serve: Any, body: bytes, why: str) -> None:
    harness.put(a=body)
    serve(gzip=True)
    with harness.open():
        await_failure(harness)
    assert f"s3://{harness.bucket}/data/a" in harness.failures[0]
    assert why in harness.failures[0]


def test_a_channel_without_objects_fails_before_anything_runs(serve: Any) -> None:
    with pytest.raises(FailedJobError, match="no S3 objects found"):
        serve()


def test_an_object_that_is_gone_never_looks_like_the_end(harness: Harness, serve: Any) -> None:
    harness.put(a=b"here", b=b"gone")
    pipes = serve()
    harness.s3.delete_object(Bucket=harness.bucket, Key="data/b")
    with harness.open() as pipe:
        assert pipe.read(100) == b"here"
        await_failure(harness)
        ended = threading.Event()
        reader = threading.Thread(target=lambda: (pipe.read(1), ended.set()), daemon=True)
        reader.start()
        assert not ended.wait(0.3)
        pipes.close()  # as the platform does when the program has ended
        assert ended.wait(60)
    (failure,) = harness.failures
    assert f"s3://{harness.bucket}/data/b" in failure
    assert "there is no such object" in failure


def test_a_defect_in_mid_object_never_looks_like_the_end(harness: Harness, serve: Any) -> None:
    def broken() -> None:
        raise RuntimeError("out of order")

    harness.put(a=LARGE)
    harness.s3 = Breaking(harness.s3, after=1 << 20, times=1, change=broken)
    pipes = serve()
    with harness.open() as pipe:
        await_failure(harness, pipe)
        ended = threading.Event()
        os.set_blocking(pipe.fileno(), True)
        reader = threading.Thread(target=lambda: (pipe.readall(), ended.set()), daemon=True)
        reader.start()
        assert not ended.wait(0.3)
        pipes.close()
        assert ended.wait(60)
    assert harness.failures == ['InternalServerError: channel "train": RuntimeError: out of order']


@pytest.mark.parametrize("fault", ["an error", "the end"])
def test_a_thread_that_waits_for_s3_for_long_does_nothing_to_the_next_life(
    harness: Harness, serve: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    waiting, answered = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        answered.wait(60)
        if fault == "an error":
            raise RuntimeError("too late")

    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.05)
    harness.put(a=b"")
    harness.s3 = Before(harness.s3, wait)
    pipes = serve()
    try:
        with harness.open(host="algo-2"):
            assert waiting.wait(60)
        pipes.close()
    finally:
        answered.set()
    pipes._threads[1].join(60)
    assert not harness.failures
    assert harness.path(0, "algo-2").exists()
    assert not harness.path(1, "algo-2").exists()


class Before:
    """A client that does something before it gets an object."""

    def __init__(self, s3: Any, act: Callable[[], None]) -> None:
        self._s3, self._act = s3, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def get_object(self, **request: Any) -> Any:
        self._act()
        return self._s3.get_object(**request)


def test_a_broken_connection_is_made_again_where_it_broke(harness: Harness, serve: Any) -> None:
    harness.put(a=LARGE)
    harness.s3 = Breaking(harness.s3, after=1 << 20, times=3)
    serve()
    assert harness.read() == LARGE
    assert not harness.failures


def test_a_connection_that_always_breaks_at_one_place_is_given_up(
    harness: Harness, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects.time, "sleep", lambda _: None)
    harness.put(a=LARGE)
    harness.s3 = Breaking(harness.s3, after=0, times=1000)
    serve()
    with harness.open():
        await_failure(harness)
    assert "data/a" in harness.failures[0]


def test_an_object_that_changes_is_an_error_and_never_a_mix(harness: Harness, serve: Any) -> None:
    harness.put(a=LARGE)
    change = lambda: harness.put(a=LARGE[::-1])  # noqa: E731
    harness.s3 = Breaking(harness.s3, after=1 << 20, times=1, change=change)
    serve()
    with harness.open() as pipe:
        await_failure(harness, pipe)
    assert "changed while it was read" in harness.failures[0]


def test_a_server_that_ignores_ranges_is_an_error_and_never_a_repetition(harness: Harness, serve: Any) -> None:
    harness.put(a=LARGE)
    harness.s3 = Breaking(harness.s3, after=1 << 20, times=1, ranges=False)
    serve()
    with harness.open() as pipe:
        await_failure(harness, pipe)
    assert harness.failures[0].startswith(
        f"ClientError: s3://{harness.bucket}/data/a: S3 was asked to continue at byte "
    )
    assert "and sent the whole object" in harness.failures[0]


@pytest.mark.parametrize("reader", ["nobody", "one that does not read", "one that reads"])
def test_closing_leaves_no_thread_and_no_descriptor(
    harness: Harness, serve: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 60)
    harness.put(a=LARGE)
    pipes = serve()
    with harness.open() if reader != "nobody" else contextlib.nullcontext() as pipe:
        if reader == "one that reads":
            pipe.read(10)
        time.sleep(0.1)
        begun = time.monotonic()
        pipes.close()
        assert time.monotonic() - begun < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pipe train")]
    assert not [link for link in Path("/proc/self/fd").iterdir() if "train_" in os.path.realpath(link)]


def await_failure(harness: Harness, pipe: Any = None) -> None:
    deadline = time.monotonic() + 60
    while not harness.failures:
        assert time.monotonic() < deadline
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            pipe.read(1 << 16)
        time.sleep(0.005)
