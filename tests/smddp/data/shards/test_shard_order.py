"""Records of shards, each at its place, at any number of ranks and loader workers, after any number of resumes."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from smddp.data import ElasticSampler, HostShardedSampler
from smddp.data.formats.tar import TarReader
from smddp.data.shards import ShardedDataset, ShardEvaluation, ShardOrder
from smddp.data.shards.shard import MARK_EVERY
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import MemorySource, fill, number_of, numbered


def dataset_of(*sizes: int, kind: str = "jsonl", **options: Any) -> ShardedDataset:
    return ShardedDataset(MemorySource(numbered(sizes, kind=kind)), **options)


def all_ranks(dataset: ShardedDataset, world_size: int, **options: Any) -> list[ShardOrder]:
    return [ShardOrder(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def micro_batches(order: ShardOrder) -> list[list[int]]:
    return [[number_of(record) for record in batch] for batch in order]


def global_batches(orders: list[ShardOrder], accumulate: int = 1) -> list[list[int]]:
    """What all ranks see an optimizer step: rank after rank, micro-batch after micro-batch within each."""
    of_ranks = [micro_batches(order) for order in orders]
    assert {len(each) % accumulate for each in of_ranks} == {0}
    steps = range(0, len(of_ranks[0]), accumulate)
    return [
        list(chain.from_iterable(chain.from_iterable(each[step : step + accumulate] for each in of_ranks)))
        for step in steps
    ]


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], ShardedDataset, list[tuple[int, int, int]]]:
    """Options, shards, and lives: (world size, accumulate, steps taken before the next one)."""
    global_batch = draw(st.integers(1, 48))
    divisors = [number for number in range(1, global_batch + 1) if global_batch % number == 0]
    sizes = draw(st.lists(st.integers(0, 150), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= global_batch))
    lives = []
    for _ in range(draw(st.integers(1, 6))):
        world_size = draw(st.sampled_from([number for number in divisors if number <= 16]))
        accumulate = draw(st.sampled_from([n for n in divisors if global_batch // world_size % n == 0]))
        lives.append((world_size, accumulate, draw(st.integers(0, sum(sizes) // global_batch))))
    options = {
        "global_batch": global_batch,
        "seed": draw(st.integers()),
        "shuffle": draw(st.booleans()),
        "tail": draw(st.sampled_from(["drop", "wrap"])),
    }
    kind, window = draw(st.sampled_from(["jsonl", "tar"])), draw(st.integers(1, 200))
    return options, dataset_of(*sizes, kind=kind, window=window, lanes=draw(st.sampled_from([None, *divisors]))), lives


@settings(deadline=None, max_examples=30)
@given(run=runs(), epoch=st.integers(0, 3))
@pytest.mark.slow
def test_any_schedule_of_world_sizes_and_resumes_gives_the_undisturbed_order(
    run: tuple[dict[str, Any], ShardedDataset, list[tuple[int, int, int]]], epoch: int
) -> None:
    options, dataset, lives = run
    alone = ShardOrder(dataset, **options)
    alone.start_epoch(epoch)
    undisturbed = global_batches([alone])

    seen: list[list[int]] = []
    saved: dict[str, Any] | None = None
    for world_size, accumulate, steps in [*lives, (1, 1, len(undisturbed))]:
        orders = all_ranks(dataset, world_size, accumulate=accumulate, **options)
        for order in orders:
            if saved is not None:
                order.load_state_dict(json.loads(json.dumps(saved)))
            order.start_epoch(epoch)
        ahead = global_batches(orders, accumulate)
        assert len(orders[0]) == len(ahead) * accumulate
        taken = ahead[:steps]
        seen += taken
        for order in orders:
            for _ in taken:
                order.advance()
        states = [order.state_dict() for order in orders]
        assert states.count(states[0]) == world_size
        saved = states[0]

    assert seen == undisturbed
    records, counts = len(dataset), Counter(chain.from_iterable(seen))
    whole = records // options["global_batch"] * options["global_batch"]
    filled_up = -(-records // options["global_batch"]) * options["global_batch"]
    expected = (whole, whole) if options["tail"] == "drop" else (records, filled_up)
    assert (len(counts), counts.total()) == expected
    assert dataset.source.open_files == 0  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=30)
@given(
    records=st.integers(1, 100),
    global_batch=st.sampled_from([4, 12, 48]),
    world_size=st.sampled_from([1, 2]),
    accumulate=st.sampled_from([1, 2]),
)
def test_a_short_last_batch_has_what_is_left_and_weighs_each_sample_alike(
    records: int, global_batch: int, world_size: int, accumulate: int
) -> None:
    dataset = dataset_of(records // 2, records - records // 2)
    orders = all_ranks(dataset, world_size, global_batch=global_batch, accumulate=accumulate, tail="short")
    weights: Counter[int] = Counter()
    iterators = [iter(order) for order in orders]
    for step in range(orders[0].steps_per_epoch):
        weight_of_step: Counter[int] = Counter()
        for order, batches in zip(orders, iterators, strict=True):
            for micro_batch in range(accumulate):
                numbers = [number_of(record) for record in next(batches)]
                for number in numbers:
                    weight_of_step[number] += order.loss_weight(micro_batch) / len(numbers) / accumulate / world_size
        size = min(global_batch, records - step * global_batch)
        used = {number: weight for number, weight in weight_of_step.items() if weight}
        assert len(used) == size
        assert list(used.values()) == pytest.approx([1 / size] * size)
        weights.update(used.keys())
        for order in orders:
            order.advance()
    assert weights == Counter(range(records))
    assert all(next(batches, None) is None for batches in iterators)
    assert [len(order) for order in orders] == [0] * world_size
    assert orders[0].consumed == records


def test_a_short_last_batch_resumes_on_another_number_of_ranks() -> None:
    dataset = dataset_of(30, 5)
    order = ShardOrder(dataset, global_batch=12, tail="short")
    last = micro_batches(order)[-1]
    order.advance()
    order.advance()
    resumed = all_ranks(dataset, 3, global_batch=12, tail="short")
    for each in resumed:
        each.load_state_dict(order.state_dict())
    assert global_batches(resumed) == [last]
    assert len(last) == 11
    resumed[0].advance()
    order.load_state_dict(resumed[0].state_dict())
    assert (order.consumed, len(order), micro_batches(order)) == (35, 0, [])


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
@pytest.mark.slow
def test_the_number_of_loader_workers_changes_nothing(tmp_path: Path, kind: str) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([40, 3, 60], kind=kind)), window=20)
    order = ShardOrder(dataset, global_batch=16, rank=1, world_size=2, accumulate=2)
    expected = [[record.parse() for record in batch] for batch in order]
    assert len(expected) == 12
    for workers in (0, 1, 2):
        loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]
        assert len(loader) == 12
        assert list(loader) == expected
    assert reader_threads() == []


def test_what_a_loader_fetched_ahead_is_not_consumed(tmp_path: Path) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([50, 50])))
    order = ShardOrder(dataset, global_batch=10)
    expected = micro_batches(order)
    loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=2, collate_fn=list)  # type: ignore[arg-type]
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        order.advance()
    del batches
    assert order.consumed == 30
    assert micro_batches(order) == expected[3:]


def test_samples_are_decoded_in_the_workers(tmp_path: Path) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([20])), decode=lambda fields: (fields["id"], os.getpid()))
    order = ShardOrder(dataset, global_batch=10)
    loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=1)  # type: ignore[arg-type]
    numbers, processes = zip(*loader, strict=True)
    assert sorted(torch.cat(numbers).tolist()) == list(range(20))
    assert os.getpid() not in torch.cat(processes).tolist()


def test_the_order_never_changes() -> None:
    order = ShardOrder(dataset_of(7, 5, 9, 3, window=12), global_batch=6, seed=3)
    order.start_epoch(2)
    assert micro_batches(order) == [
        [7, 11, 0, 5, 14, 17],
        [8, 21, 1, 4, 13, 18],
        [9, 22, 3, 6, 16, 20],
        [10, 23, 2, 12, 15, 19],
    ]


def test_epochs_and_seeds_differ_and_each_is_the_same_again() -> None:
    dataset = dataset_of(30, 30, 30)
    first = global_batches([ShardOrder(dataset, global_batch=10)])
    order = ShardOrder(dataset, global_batch=10)
    order.start_epoch(1)
    assert micro_batches(order) != first
    assert global_batches([ShardOrder(dataset, global_batch=10, seed=1)]) not in (first, micro_batches(order))
    order.start_epoch(0)
    assert micro_batches(order) == first


def test_without_a_shuffle_the_shards_keep_their_order() -> None:
    orders = all_ranks(dataset_of(5, 6), 2, global_batch=4, shuffle=False)
    assert [micro_batches(order) for order in orders] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_a_record_is_shuffled_within_its_window_only() -> None:
    order = ShardOrder(dataset_of(400, lanes=1, window=50), global_batch=4)
    seen = list(chain.from_iterable(micro_batches(order)))
    for start in range(0, 400, 50):
        block = seen[start : start + 50]
        assert sorted(block) == list(range(start, start + 50))
        assert block != sorted(block)


def test_a_rank_reads_only_its_own_lanes() -> None:
    files = numbered([30] * 8)
    opened = []
    for rank in range(4):
        source = MemorySource(files)
        order = ShardOrder(ShardedDataset(source, lanes=8), global_batch=8, rank=rank, world_size=4)
        source.opened.clear()
        list(order)
        opened += [name for name, _ in source.opened]
    assert sorted(opened) == sorted(files)


def test_no_more_than_the_window_is_held_in_memory() -> None:
    source = MemorySource(numbered([3000], kind="tar"))
    order = ShardOrder(ShardedDataset(source, lanes=1, window=100), global_batch=4)
    batches = iter(order)
    source.bodies.clear()
    for _ in range(50):
        next(batches)
    time.sleep(0.1)
    # 200 records are given out, 4 micro-batches wait, one is under way, and the buffer of a file is 128 KiB.
    assert source.bodies[0].position < offset_of(source, 200 + 5 * 4 + 100) + 2 * 2**17
    del batches


def test_a_resume_reads_a_window_again_and_not_the_epoch() -> None:
    source = MemorySource(numbered([20_000]))
    dataset = ShardedDataset(source, lanes=1, window=200)
    order = ShardOrder(dataset, global_batch=100)
    expected = micro_batches(order)
    order.load_state_dict({**order.state_dict(), "consumed": 15_000})
    source.bodies.clear()
    source.opened.clear()
    assert next(iter(order)) is not None
    assert micro_batches(order) == expected[150:]
    assert source.opened[-1] == ("part-000.jsonl", dataset.index.shards[0].marks[15_000 // MARK_EVERY])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_is_left_in_mid_epoch_leaves_no_thread_and_no_file(workers: int) -> None:
    source = MemorySource(numbered([300] * 4))
    dataset = ShardedDataset(source)
    order = ShardOrder(dataset, global_batch=4)
    loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]
    for _ in loader:
        assert len(reader_threads()) == 1
        assert source.open_files
        break
    gc.collect()
    assert reader_threads() == []
    assert source.open_files == 0


def test_an_iterator_that_was_never_asked_starts_nothing() -> None:
    source = MemorySource(numbered([30]))
    order = ShardOrder(ShardedDataset(source), global_batch=4)
    batches = iter(order)
    assert reader_threads() == []
    del batches
    assert source.open_files == 0


def test_an_error_in_mid_epoch_comes_in_its_place() -> None:
    files = numbered([100])
    source = MemorySource(files)
    order = ShardOrder(ShardedDataset(source), global_batch=10, shuffle=False)
    source.files["part-000.jsonl"] = files["part-000.jsonl"][:2000]
    batches = iter(order)
    next(batches)
    with pytest.raises(DataError, match=r"memory/part-000.jsonl, record \d+ at byte \d+: the last line is cut"):
        list(batches)
    assert reader_threads() == []
    assert source.open_files == 0


def test_a_decode_that_fails_names_the_record(tmp_path: Path) -> None:
    dataset = ShardedDataset(fill(tmp_path, numbered([20], kind="tar")), decode=lambda fields: fields["png"])
    order = ShardOrder(dataset, global_batch=10, shuffle=False)
    loader = DataLoader(dataset.decoder, batch_sampler=order)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"part-000\.tar, record 0 at byte 0: decode raised KeyError: 'png'"):
        list(loader)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 3}, "has lanes=3, this run lanes=6"),
        ({"window": 9}, "resume with the same window"),
        ({"shards": 2}, "has shards=2, this run shards=1"),
        ({"seed": 1}, "has seed=1"),
        ({"fingerprint": "0" * 32}, "the data changed"),
        ({"consumed": 3}, "multiple of the global batch"),
    ],
)
def test_refuses_a_position_in_another_order(change: dict[str, object], message: str) -> None:
    order = ShardOrder(dataset_of(20), global_batch=6)
    with pytest.raises(ValueError, match=message):
        order.load_state_dict({**order.state_dict(), **change})


def test_data_without_shards_refuse_a_position_in_shards() -> None:
    dataset = dataset_of(20)
    sampler = ElasticSampler(20, global_batch=6, fingerprint=dataset.index.fingerprint)
    with pytest.raises(ValueError, match="has lanes, shards, window, which one in these data has not"):
        sampler.load_state_dict(ShardOrder(dataset, global_batch=6).state_dict())


def test_refuses_a_position_in_data_without_shards() -> None:
    dataset = dataset_of(20)
    order = ShardOrder(dataset, global_batch=6)
    with pytest.raises(ValueError, match="has shards=None"):
        order.load_state_dict(ElasticSampler(20, global_batch=6).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 7, "world_size": 2}, "the nearest are 6 and 8"),
        ({"global_batch": 32}, "only 20 samples"),
        ({"global_batch": 8, "rank": 3}, "ranks go from 0"),
        ({"global_batch": 8, "tail": "pad"}, "tail is 'pad'"),
    ],
)
def test_refuses_numbers_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShardOrder(dataset_of(20), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 3}, "lanes is 3: it must divide the global batch, 8"),
        ({"lanes": 0}, "lanes is 0"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_refuses_to_read_so(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShardOrder(dataset_of(20, **options), global_batch=8)


def test_hosts_with_shards_of_their_own_take_equal_steps_and_resume() -> None:
    parts = [dataset_of(30, 11), dataset_of(20, 9)]

    def orders() -> list[ShardOrder]:
        places = [
            HostShardedSampler([41, 29], global_batch=12, host=host, local_rank=rank, local_world_size=2)
            for host in range(2)
            for rank in range(2)
        ]
        return [ShardOrder.of(parts[place.host], place) for place in places]

    of_ranks = [micro_batches(order) for order in orders()]
    assert {len(batches) for batches in of_ranks} == {4}
    for host, records in enumerate((41, 29)):
        seen = [number for batches in of_ranks[2 * host : 2 * host + 2] for batch in batches for number in batch]
        assert len(set(seen)) == len(seen) == 24
        assert max(seen) < records

    resumed = orders()
    for order in resumed:
        order.load_state_dict(json.loads(json.dumps({**orders()[0].state_dict(), "consumed": 24})))
    assert [micro_batches(order) for order in resumed] == [batches[2:] for batches in of_ranks]


def of_hosts(hosts: int, **options: Any) -> list[ShardOrder]:
    """The orders of hosts with one rank each."""
    places = [HostShardedSampler([100] * hosts, global_batch=48, host=host, **options) for host in range(hosts)]
    return [ShardOrder.of(dataset_of(60, 40), place) for place in places]


def position_of_two_hosts() -> dict[str, Any]:
    order = of_hosts(2)[0]
    order.start_epoch(3)
    order.advance()
    return dict(json.loads(json.dumps(order.state_dict())))


def test_another_number_of_hosts_is_refused_as_such() -> None:
    order = of_hosts(4)[0]
    with pytest.raises(ValueError, match=r"sharded over 2 hosts, and it is over 4 now.* on_change=\"restart\""):
        order.load_state_dict(position_of_two_hosts())
    assert (order.epoch, order.consumed) == (0, 0)


def test_another_number_of_hosts_begins_the_epoch_anew_where_that_was_chosen() -> None:
    undisturbed = of_hosts(4)
    resumed = of_hosts(4, on_change="restart")
    for order, expected in zip(resumed, undisturbed, strict=True):
        order.load_state_dict(position_of_two_hosts())
        expected.start_epoch(3)
        assert (order.epoch, order.consumed, len(order)) == (3, 0, 8)
        assert micro_batches(order) == micro_batches(expected)


@pytest.mark.parametrize(("hosts", "change"), [(2, {"lanes": 3}), (4, {"seed": 5})])
def test_a_new_start_is_not_for_another_order(hosts: int, change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"resume with the same {name}"):
        of_hosts(hosts, on_change="restart")[0].load_state_dict({**position_of_two_hosts(), **change})


def test_a_new_start_is_not_for_a_position_in_data_without_shards() -> None:
    state = HostShardedSampler([100, 100], global_batch=48, host=0).state_dict()
    with pytest.raises(ValueError, match="has shards=None"):
        of_hosts(4, on_change="restart")[0].load_state_dict(state)


def test_says_once_what_is_read_and_warns_of_reading_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    dataset = dataset_of(20, 30)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        all_ranks(dataset, 5, global_batch=10)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("smddp.data.shards.shard_order")]
    assert len(said) == 2
    assert "50 records in 2 shards of memory; the ranks read 2 streams" in said[0]
    assert "5 ranks do not divide 2 lanes" in said[1]


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "smddp shard reader"]


def offset_of(source: MemorySource, number: int) -> int:
    """The byte of the first shard at which a record begins."""
    reader = TarReader(source.open("part-000.tar"), name="")
    for _ in range(number):
        reader.skip()
    return reader.offset


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 9),
)
def test_every_record_comes_once_over_all_ranks(sizes: list[int], batch_size: int, world_size: int) -> None:
    source = MemorySource(numbered(sizes))
    dataset = ShardedDataset(source)
    ranks = [ShardEvaluation(dataset, batch_size=batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    batches = [list(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == [len(each) for each in batches]
    records = chain.from_iterable(chain.from_iterable(batches))
    assert [number_of(record) for record in records] == list(range(sum(sizes)))
    assert source.open_files == 0


def test_a_loader_takes_it_and_leaves_no_file_open() -> None:
    source = MemorySource(numbered([50, 50]))
    dataset = ShardedDataset(source, decode=lambda fields: fields["id"])
    loader = DataLoader(dataset.decoder, batch_sampler=ShardEvaluation(dataset, batch_size=30))  # type: ignore[arg-type]
    assert [len(batch) for batch in loader] == [30, 30, 30, 10]
    for _ in loader:
        break
    assert source.open_files == 0


def test_evaluation_refuses_numbers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        ShardEvaluation(ShardedDataset(MemorySource(numbered([5]))), batch_size=0)
