"""Training data through pipes: every record once, on any number of hosts, whatever is resumed; and no wait for ever."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import os
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from smddp.data.pipes import PipeDataset, PipeOrder
from smddp.errors import DataError, JobError
from smddp.job.channels import Input

Serve = Callable[..., Input]


class Platform:
    """Sends an epoch after the other through named pipes, as SageMaker does, from a thread."""

    def __init__(self, path: Path, content: Callable[[int], bytes]) -> None:
        self.path = path
        self._content = content
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.current = self._make(0)
        self._thread.start()

    def _make(self, epoch: int) -> Path:
        path = self.path.with_name(f"{self.path.name}_{epoch}")
        os.mkfifo(path)
        return path

    def _run(self) -> None:
        for epoch in itertools.count():
            path = self.path.with_name(f"{self.path.name}_{epoch}")
            self.current = path
            with path.open("wb", buffering=0) as pipe:
                if self._closing:
                    return
                with contextlib.suppress(BrokenPipeError):
                    data = memoryview(self._content(epoch))
                    while data:
                        data = data[pipe.write(data) :]
                self._make(epoch + 1)
                path.unlink()

    def close(self) -> None:
        self._closing = True
        while self._thread.is_alive():
            with contextlib.suppress(FileNotFoundError, OSError):
                os.close(os.open(self.current, os.O_RDONLY | os.O_NONBLOCK))
            self._thread.join(0.01)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def start(content: Callable[[int], bytes] | bytes, **parameters: Any) -> Input:
            path = tmp_path / f"host-{next(numbers)}" / "training"
            path.parent.mkdir()
            given = content if callable(content) else lambda _: content
            stack.callback(Platform(path, given).close)
            return Input(**({"name": "training", "mode": "Pipe", "path": path} | parameters))

        yield start


def lines(numbers: Sequence[int]) -> bytes:
    return b"".join(json.dumps({"n": number}).encode() + b"\n" for number in numbers)


def epoch_of(records: int) -> Callable[[int], bytes]:
    """Record n of epoch e is 1000 e + n."""
    return lambda epoch: lines(range(1000 * epoch, 1000 * epoch + records))


def order_of(channel: Input, *, records: int | None = None, **parameters: Any) -> PipeOrder:
    dataset = PipeDataset(channel, format="jsonl", records=records, wait_seconds=10)
    return PipeOrder(dataset, **({"global_batch": 4} | parameters))


def numbers(micro_batch: Any) -> list[int]:
    return [record.parse()["n"] for record in micro_batch]


def test_one_rank_reads_epoch_after_epoch_in_whole_batches(serve: Serve) -> None:
    order = order_of(serve(epoch_of(10)))
    for epoch in range(3):
        order.start_epoch(epoch)
        batches = [numbers(batch) for batch in order]
        assert batches == [[1000 * epoch + n for n in range(start, start + 4)] for start in (0, 4)]


def test_ranks_and_micro_batches_take_their_parts_of_each_batch(serve: Serve) -> None:
    orders = [order_of(serve(epoch_of(17)), global_batch=8, rank=rank, world_size=2, accumulate=2) for rank in range(2)]
    shares = [[numbers(batch) for batch in order] for order in orders]
    assert shares == [[[0, 1], [4, 5], [8, 9], [12, 13]], [[2, 3], [6, 7], [10, 11], [14, 15]]]


def test_hosts_with_parts_of_their_own_take_as_many_steps(serve: Serve) -> None:
    parts = [range(7), range(100, 105)]
    orders = [
        order_of(serve(lines(part), sharded_by_host=True), rank=rank, world_size=2, records=5)
        for rank, part in enumerate(parts)
    ]
    shares = [[numbers(batch) for batch in order] for order in orders]
    assert shares == [[[0, 1], [2, 3]], [[100, 101], [102, 103]]]
    assert [len(order) for order in orders] == [2, 2]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_any_schedule_of_hosts_and_resumes_gives_each_record_once(serve: Serve, data: st.DataObject) -> None:
    records, epochs = data.draw(st.integers(12, 60), "records"), 2
    expected = [1000 * epoch + n for epoch in range(epochs) for n in range(records - records % 12)]
    seen: list[int] = []
    state: dict[str, Any] | None = None
    while len(seen) < len(expected):
        hosts = data.draw(st.sampled_from([1, 2, 3, 6]), "hosts")
        orders = [
            order_of(serve(epoch_of(records)), global_batch=12, rank=rank, world_size=hosts, accumulate=2)
            for rank in range(hosts)
        ]
        for order in orders:
            if state is not None:
                order.load_state_dict(state)
        steps = data.draw(st.integers(1, 6), "steps")
        state = train(orders, steps, epochs, seen)
    assert seen == expected


def train(orders: list[PipeOrder], steps: int, epochs: int, seen: list[int]) -> dict[str, Any]:
    """So many steps on all ranks side by side, and more batches fetched than trained on."""
    for epoch in range(orders[0].epoch, epochs):
        for order in orders:
            order.start_epoch(epoch)
        with contextlib.ExitStack() as stack:
            ranks = [iter(order) for order in orders]
            for rank in ranks:
                stack.callback(rank.close)  # type: ignore[attr-defined]
            while step := [list(itertools.islice(rank, 2)) for rank in ranks]:
                if not all(step):
                    assert not any(step), "some ranks have a step more"
                    break
                if not steps:
                    return orders[0].state_dict()
                steps -= 1
                seen += [n for micro in range(2) for rank in step for n in numbers(rank[micro])]
                for order in orders:
                    order.advance()
    assert len({str(order.state_dict()) for order in orders}) == 1
    return orders[0].state_dict()


def test_a_resume_drops_what_was_consumed_and_says_what_it_cost(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    order = order_of(serve(epoch_of(12)))
    order.load_state_dict(order.state_dict() | {"epoch": 2, "consumed": 8})
    assert [numbers(batch) for batch in order] == [[2008, 2009, 2010, 2011]]
    cost = len(lines(range(2000, 2008)))
    assert f"resumed in epoch 2: 8 records ({cost} bytes) came through the pipe again and were dropped" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_whatever_its_workers_and_leaves_nothing_open(serve: Serve, workers: int) -> None:
    dataset = PipeDataset(serve(epoch_of(20)), format="jsonl", decode=lambda record: record["n"])
    order = PipeOrder(dataset, global_batch=4)
    loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=workers)  # type: ignore[arg-type]
    for epoch in range(2):
        order.start_epoch(epoch)
        assert [batch.tolist() for batch in loader] == [
            [1000 * epoch + n for n in range(start, start + 4)] for start in range(0, 20, 4)
        ]
    order.start_epoch(2)
    batches = iter(loader)
    next(batches)
    del batches
    deadline = time.monotonic() + 60
    # Whoever serves the pipe is a thread of this process too: it closes its end once it hears that nobody reads.
    while left := [
        *(thread.name for thread in threading.enumerate() if thread.name == "smddp shard reader"),
        *(path for link in Path("/proc/self/fd").iterdir() if "training_2" in (path := os.path.realpath(link))),
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_tar_files_follow_each_other(serve: Serve) -> None:
    def archive(*keys: str) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for key in keys:
                for end in ("jpg", "cls"):
                    info = tarfile.TarInfo(f"{key}.{end}")
                    info.size = 3
                    tar.addfile(info, io.BytesIO(end.encode()))
        return file.getvalue()

    dataset = PipeDataset(serve(archive("a", "b") + archive("c", "d")), format="tar")
    (batch,) = PipeOrder(dataset, global_batch=4)
    assert [record.parse()["__key__"] for record in batch] == ["a", "b", "c", "d"]
    assert batch[0].parse() == {"__key__": "a", "jpg": b"jpg", "cls": b"cls"}


def recordio(*parts: tuple[int, bytes]) -> bytes:
    return b"".join(
        struct.pack("<II", 0xCED7230A, kind << 29 | len(body)) + body + bytes(-len(body) % 4) for kind, body in parts
    )


def test_wrapped_objects_are_records(serve: Serve) -> None:
    stream = recordio((0, b"whole"), (0, b""), (1, b"in"), (2, b"three"), (3, b"parts"), (0, b"last"))
    dataset = PipeDataset(serve(stream, recordio=True))
    (batch,) = PipeOrder(dataset, global_batch=4)
    magic = b"\n#\xd7\xce"
    assert [record.parse()["record"] for record in batch] == [
        b"whole",
        b"",
        b"in" + magic + b"three" + magic + b"parts",
        b"last",
    ]


WRAPPED = recordio((0, b"first"), (0, b"second"))


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (WRAPPED[:-3], "record 1 .* cut in a record"),
        (WRAPPED[:-14], "record 1 .* cut in a record's header"),
        (WRAPPED + b"no record here", r"record 2 .* no RecordIO record begins here"),
        (recordio((0, b"x"), (2, b"middle")), "record 1 .* no RecordIO record begins here"),
        (recordio((0, b"x"), (1, b"begun")), "record 1 .* cut between two parts"),
        (recordio((0, bytes(200))), "record 0 .* more than 100 bytes"),
        (recordio((1, bytes(40)), (3, bytes(57))), "record 0 .* more than 100 bytes"),
        (recordio((1, b""), *[(2, b"")] * 26), "record 0 .* more than 100 bytes"),
    ],
)
def test_a_damaged_stream_of_records_is_an_error_with_its_place(serve: Serve, stream: bytes, said: str) -> None:
    dataset = PipeDataset(serve(stream, recordio=True), largest_record=100)
    with pytest.raises(DataError, match=said):
        list(PipeOrder(dataset, global_batch=1))


def test_a_record_in_parts_may_be_as_large_as_a_whole_one(serve: Serve) -> None:
    stream = recordio((1, bytes(40)), (3, bytes(56)))
    dataset = PipeDataset(serve(stream, recordio=True), largest_record=100)
    ((record,),) = PipeOrder(dataset, global_batch=1)
    assert len(record.parse()["record"]) == 100


def test_a_line_that_is_cut_is_an_error(serve: Serve) -> None:
    with pytest.raises(DataError, match="the last line is cut"):
        list(order_of(serve(lines(range(4))[:-4])))


def test_fewer_records_than_were_said_are_an_error_and_more_are_left(serve: Serve) -> None:
    with pytest.raises(DataError, match=r"training_0 ended after 10 records, but records=12 was said"):
        list(order_of(serve(epoch_of(10)), records=12))
    assert len(list(order_of(serve(epoch_of(10)), records=4))) == 1


@pytest.mark.parametrize(("records", "said"), [(3, "choose a global_batch of at most 3, or see"), (0, "= 4: see")])
def test_less_than_one_batch_is_an_error_on_all_ranks(serve: Serve, records: int, said: str) -> None:
    for rank in range(2):
        order = order_of(serve(epoch_of(records)), rank=rank, world_size=2)
        with pytest.raises(DataError, match=rf"training_0 ended after {records} records, .*{said} whether all objects"):
            list(order)


def test_an_epoch_whose_steps_were_all_taken_may_be_resumed(serve: Serve) -> None:
    order = order_of(serve(epoch_of(6)))
    order.load_state_dict(order.state_dict() | {"consumed": 4})
    assert list(order) == []


def test_says_once_how_many_records_are_left_out(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for rank in range(2):
        assert len(list(order_of(serve(epoch_of(11)), rank=rank, world_size=2))) == 2
        assert len(list(order_of(serve(epoch_of(8)), rank=rank, world_size=2))) == 2
        order_of(serve(epoch_of(11)), rank=rank, world_size=2, records=11)
    unknown, known = (record.getMessage() for record in caplog.records)
    assert unknown.endswith("training_0 sent 11 records: 2 steps of 4, and the last 3 are left out")
    assert known == "an epoch is 2 steps of 4 records; the last 3 are left out (11 records in all)"


def test_a_position_behind_the_end_is_an_error(serve: Serve) -> None:
    order = order_of(serve(epoch_of(10)))
    order.load_state_dict(order.state_dict() | {"consumed": 12})
    with pytest.raises(DataError, match="ended after 10 records, but the saved position is behind them"):
        list(order)


def test_an_epoch_can_be_read_once_in_a_process(serve: Serve) -> None:
    order = order_of(serve(epoch_of(4)))
    list(order)
    with pytest.raises(ValueError, match="pipe of epoch 0 was read in this process already"):
        iter(order)


def test_only_batches_that_were_given_out_are_counted(serve: Serve) -> None:
    order = order_of(serve(epoch_of(8)))
    with pytest.raises(ValueError, match="a step more was taken"):
        order.advance()
    batches = iter(order)
    next(batches)
    order.advance()
    with pytest.raises(ValueError, match="a step more was taken"):
        order.advance()
    assert order.consumed == 4
    assert order.loss_weight(0) == 1.0


def test_the_length_is_unknown_unless_it_is_said(serve: Serve) -> None:
    order = order_of(serve(epoch_of(8)))
    assert order.steps_per_epoch is None
    with pytest.raises(TypeError, match="give records"):
        len(order)
    known = order_of(serve(epoch_of(8)), records=11, accumulate=2)
    assert (len(known), known.steps_per_epoch) == (4, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipe": None}, "pipe=None"),
        ({"channel": "other"}, "channel='other'"),
        ({"global_batch": 8}, "global_batch=8"),
        ({"sharded_over": 2}, "sharded_over=2"),
        ({"records": 5}, "records=5"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": "1"}, "epoch='1'"),
        ({"consumed": 3}, "consumed=3"),
        ({"consumed": -4}, "consumed=-4"),
        ({"consumed": None}, "consumed=None"),
    ],
)
def test_a_position_of_something_else_is_refused(serve: Serve, change: dict[str, Any], said: str) -> None:
    order = order_of(serve(b""))
    with pytest.raises(ValueError, match=said):
        order.load_state_dict(order.state_dict() | change)


def test_several_ranks_on_a_host_are_refused_with_what_to_do(serve: Serve) -> None:
    with pytest.raises(ValueError, match=r"2 ranks of this host .* run one process a host"):
        order_of(serve(b""), world_size=4, local_world_size=2)


def test_parts_of_unknown_size_are_refused_for_ranks_would_wait_for_ever(serve: Serve) -> None:
    with pytest.raises(ValueError, match="give records, the number that the host with the fewest has"):
        order_of(serve(b"", sharded_by_host=True), world_size=2)


def test_a_directory_is_refused_and_a_format_must_fit(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is a directory"):
        PipeDataset(Input(name="training", path=tmp_path), format="jsonl")
    with pytest.raises(ValueError, match="one of 'jsonl', 'tar', 'recordio'"):
        PipeDataset(serve(b""))
    with pytest.raises(ValueError, match="has RecordWrapperType RecordIO"):
        PipeDataset(serve(b"", recordio=True), format="tar")


def test_a_pipe_that_never_comes_or_never_sends_ends_the_wait(tmp_path: Path) -> None:
    channel = Input(name="training", mode="Pipe", path=tmp_path / "training")
    order = PipeOrder(PipeDataset(channel, format="jsonl", wait_seconds=0.2), global_batch=1)
    with pytest.raises(DataError, match="training_0 did not come within"):
        list(order)
    os.mkfifo(tmp_path / "training_0")
    order = PipeOrder(PipeDataset(channel, format="jsonl", wait_seconds=0.2), global_batch=1)
    with pytest.raises(DataError, match="nothing came through"):
        list(order)
    (tmp_path / "training_0").unlink()
    (tmp_path / "training_0").touch()
    order = PipeOrder(PipeDataset(channel, format="jsonl"), global_batch=1)
    with pytest.raises(DataError, match="is no named pipe"):
        list(order)


def test_an_abandoned_wait_ends_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "training_0")
    order = order_of(Input(name="training", mode="Pipe", path=tmp_path / "training"))
    batches: Any = iter(order)
    reader = threading.Thread(target=lambda: next(batches, None), daemon=True)
    reader.start()
    time.sleep(0.1)
    writer = (tmp_path / "training_0").open("wb", buffering=0)
    writer.write(lines(range(4)))
    reader.join(60)
    begun = time.monotonic()
    batches.close()  # while its thread waits for more
    assert time.monotonic() - begun < 60
    writer.close()
