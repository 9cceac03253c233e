"""Every tensor is written exactly once, whatever the state and however many write, and nobody writes much more."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.format.manifest import file_names
from smddp.checkpoint.save.snapshot import WHOLE_BELOW, share

NAMES = st.text(alphabet="ab.0", min_size=1, max_size=4)
SIZES = st.one_of(st.integers(0, 100), st.integers(0, 50 * WHOLE_BELOW))
STATES = st.dictionaries(st.sampled_from(["model", "optimizer", "ema"]), st.dictionaries(NAMES, SIZES, max_size=40))
WRITERS = st.integers(1, 9)


@given(STATES, WRITERS)
def test_every_tensor_is_in_exactly_one_file(parts: dict[str, dict[str, int]], writers: int) -> None:
    shares = [each for files in share(parts, writers) for each in files]
    written = Counter((each.part, name) for each in shares for name in each.tensors)
    assert written == Counter((part, name) for part, sizes in parts.items() for name in sizes)


@given(STATES, WRITERS)
def test_the_files_of_a_part_are_numbered_without_a_gap_and_none_is_empty(
    parts: dict[str, dict[str, int]], writers: int
) -> None:
    shares = [each for files in share(parts, writers) for each in files]
    assert all(each.tensors for each in shares)
    for part, sizes in parts.items():
        names = sorted(each.name for each in shares if each.part == part)
        assert names == (file_names(part, len(names)) if sizes else [])


@given(STATES, WRITERS, st.randoms(use_true_random=False))
def test_ranks_that_found_the_tensors_in_another_order_come_to_the_same_answer(
    parts: dict[str, dict[str, int]], writers: int, random: object
) -> None:
    def shuffled(items: dict[str, object]) -> dict[str, object]:
        pairs = list(items.items())
        random.shuffle(pairs)  # type: ignore[attr-defined]
        return dict(pairs)

    def files(parts: dict[str, dict[str, int]]) -> list[dict[str, set[str]]]:
        return [{each.name: set(each.tensors) for each in shares} for shares in share(parts, writers)]

    assert files(parts) == files(shuffled({part: shuffled(sizes) for part, sizes in parts.items()}))


@given(STATES, WRITERS)
def test_nobody_writes_more_than_a_fair_share_and_one_tensor(parts: dict[str, dict[str, int]], writers: int) -> None:
    sizes = {(part, name): size for part, each in parts.items() for name, size in each.items()}
    loads = [sum(sizes[each.part, name] for each in files for name in each.tensors) for files in share(parts, writers)]
    small = sum(total for each in parts.values() if (total := sum(each.values())) < WHOLE_BELOW)
    assert max(loads) <= sum(loads) / writers + max(small, *sizes.values(), 0)


@given(STATES)
def test_one_writer_writes_each_part_whole(parts: dict[str, dict[str, int]]) -> None:
    (shares,) = share(parts, 1)
    assert {each.name for each in shares} == {f"{part}.safetensors" for part, sizes in parts.items() if sizes}


@pytest.mark.parametrize(("size", "files"), [(WHOLE_BELOW - 1, 1), (WHOLE_BELOW, 2)])
def test_a_small_part_is_not_divided(size: int, files: int) -> None:
    shares = share({"model": {"a": size - 10, "b": 10}}, 2)
    assert sum(len(each) for each in shares) == files
    assert shares[0]


def test_equal_tensors_are_dealt_out_evenly() -> None:
    shares = share({"model": {f"layer.{index}": WHOLE_BELOW for index in range(12)}}, 4)
    assert [[len(each.tensors) for each in files] for files in shares] == [[3]] * 4


def test_what_only_the_first_writer_has_right_it_writes() -> None:
    sizes = {f"layer.{index}": WHOLE_BELOW for index in range(6)}
    first, second = share({"model": sizes}, 2, places={"model": {"layer.1": 0, "layer.4": 0, "of no state": 0}})
    assert {"layer.1", "layer.4"} <= set(first[0].tensors)
    assert [len(each[0].tensors) for each in (first, second)] == [3, 3]


def test_each_writer_writes_its_own_pieces_and_the_others_make_up_for_it() -> None:
    sizes = {"a@0": 6 * WHOLE_BELOW, "a@1": 2 * WHOLE_BELOW, **{f"layer.{index}": WHOLE_BELOW for index in range(4)}}
    first, second = share(
        {"model": sizes, "small": {"b@0": 8}}, 2, places={"model": {"a@0": 0, "a@1": 1}, "small": {"b@0": 1}}
    )
    assert [each.tensors for each in first] == [("a@0",)]
    assert [set(each.tensors) for each in second] == [{"a@1", *(f"layer.{index}" for index in range(4))}, {"b@0"}]
    assert second[1].name == "small.safetensors"
