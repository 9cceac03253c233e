"""Memory in huge pages behaves like any other, and goes back when the last tensor in it does."""

from __future__ import annotations

import os
import weakref

import pytest
import torch

from smddp.checkpoint.format.tensors import allocate, tensor_at


@pytest.mark.parametrize("size", [1, 4096, 5 * 2**20 + 3])
def test_is_as_large_as_asked_for_and_zero(size: int) -> None:
    memory = allocate(size)
    assert memory.nbytes == size
    assert not any(memory[:100])
    memory[size - 1] = 7


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no memory of"):
        allocate(2**60)


def test_a_tensor_is_its_place_and_no_more() -> None:
    memory = allocate(64)
    one = tensor_at(memory, 8, torch.float32, (2, 3))
    other = tensor_at(memory, 32, torch.int64, ())
    one.fill_(1.5)
    other.fill_(-1)
    assert bytes(memory[:8]) == bytes(8)
    assert bytes(memory[8:32]) == torch.full((6,), 1.5).numpy().tobytes()
    assert bytes(memory[32:40]) == b"\xff" * 8
    assert one.untyped_storage().nbytes() == 24
    assert tensor_at(memory, 0, torch.float16, (0, 5)).shape == (0, 5)


def test_goes_back_with_the_last_tensor() -> None:
    memory = allocate(8 * 2**20)
    gone = weakref.ref(memory.obj)
    tensors = [tensor_at(memory, start, torch.uint8, (100,)) for start in (0, 2**20)]
    del memory
    assert gone() is not None
    tensors.pop()
    assert gone() is not None
    tensors.pop()
    assert gone() is None


def test_a_fork_shares_what_is_to_be_shared_and_makes_no_copy_of_it() -> None:
    memory, own = allocate(4096, shared=True), allocate(4096)
    child = os.fork()
    if child == 0:
        memory[0] = own[0] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert (memory[0], own[0]) == (7, 0)
