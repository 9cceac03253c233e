"""The error that ended a program is found in what it printed, whatever stands around it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from smddp.distributed import Replica, ShardedModel
from smddp.failure.printed_error import PrintedError, find_error, hint
from smddp.failure.report import describe_error
from smddp.training.precision import AutocastModel, HalfWeightsModel, PureHalfModel

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'
BROKEN = TRACEBACK + "ValueError: the data is broken\n"
LOST = TRACEBACK + "RuntimeError: [pair.cc:545] Read error [127.0.0.1]:2: Connection reset by peer.\n"
GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 1001000 vs 12\n"
)

NAMELESS = lambda: None  # noqa: E731, what a script may have


def found(printed: str, **options: bool) -> PrintedError:
    error = find_error(printed, **options)
    assert error is not None
    return error


def printed_by(code: str, *options: str) -> str:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True).stderr


def decorated(text: str, before: str) -> str:
    return "".join(f"{before}{line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("before", ["[rank0]: ", "[default3]:", "[default3]:[rank3]: ", "[1,12]<stderr>:"])
def test_what_torch_and_launchers_put_before_a_line_is_left_out(before: str) -> None:
    error = found(decorated(BROKEN, before) + "12:00:00 ERROR smddp: Rank 1 ended with code 1.\n")
    assert error.message == "ValueError: the data is broken"
    assert error.context == TRACEBACK.rstrip("\n")


def test_the_launchers_own_words_are_no_error() -> None:
    log = "12:00:00 smddp: Process 9 ended with code 1: ending the others.\n"
    log += "12:00:00 ERROR smddp: Rank 1 ended with code 1.\n"
    assert found("no such file\n" + log).message == "no such file"
    assert find_error(log) is None


def test_of_many_ranks_one_that_lost_contact_is_not_the_cause() -> None:
    assert found(LOST + BROKEN, first=True).message == "ValueError: the data is broken"
    assert found(LOST, first=True).is_lost_contact
    assert not found(BROKEN).is_lost_contact


def test_ranks_that_print_their_tracebacks_at_once_have_an_error_all_the_same() -> None:
    mixed = "".join(f"{line}\n{line}\n" for line in BROKEN.splitlines())
    assert found(mixed, first=True).message.splitlines()[0] == "ValueError: the data is broken"


def test_what_a_rank_prints_behind_anothers_exception_is_no_part_of_its_message() -> None:
    begun = ["Traceback (most recent call last):", '  File "train.py", line 8, in <module>']
    ended = ["    raise ValueError('bad')", "ValueError: bad"]
    mixed = "\n".join([*begun, *begun, *ended, *ended, "-" * 74, "Primary job terminated normally"])
    assert found(mixed, first=True).message == "ValueError: bad"


@pytest.mark.parametrize(
    "before", ["Exception in thread Thread-1 (f):", "Process Process-1:", "--- Logging error ---", "future: <Task x>"]
)
def test_an_exception_beside_the_main_program_is_not_its_end(before: str) -> None:
    beside = f"{before}\nTraceback (most recent call last):\n  File 'x'\nKeyError: 3\n"
    assert found(BROKEN + beside).message == found(beside + BROKEN).message == "ValueError: the data is broken"
    assert found(beside).message == "KeyError: 3"


def test_an_exception_that_the_exit_code_and_later_words_belie_is_not_the_error() -> None:
    printed = BROKEN + "going on\n" * 20 + "no space left"
    assert found(printed, raised=False).message == "no space left"
    assert found(printed).message.startswith("ValueError: the data is broken\ngoing on")
    several = BROKEN + "in line 3"  # as by traceback.print_exc() before sys.exit(3)
    assert found(several, raised=False).message == "ValueError: the data is broken\nin line 3"


def test_what_led_to_an_exception_is_told_with_it() -> None:
    begun = "Traceback (most recent call last):\n  File 'x'\n"
    printed = f"{begun}KeyError: 3\n\nThe above exception was the direct cause of the following exception:\n\n"
    error = found(f"{printed}{begun}ValueError: outer\n")
    assert error.message == "ValueError: outer"
    assert "KeyError: 3\nThe above exception was the direct cause" in error.context


def test_all_lines_of_a_message_belong_to_it() -> None:
    code = "raise RuntimeError('Error(s) in loading state_dict:\\n\\tMissing key(s): \"weight\".\\nin model.pt')"
    assert found(printed_by(code) + "x.py:1: UserWarning: leaked\n").message == (
        'RuntimeError: Error(s) in loading state_dict:\n\tMissing key(s): "weight".\nin model.pt'
    )


def test_an_error_of_a_chain_whose_messages_have_several_lines_is_the_last() -> None:
    code = "try:\n    raise KeyError('a')\nexcept KeyError as error:\n    raise ValueError('b') from error"
    printed = printed_by(code.replace("KeyError('a')", "ImportError('a\\nb')").replace("except Key", "except Import"))
    assert found(printed, first=True).message == "ValueError: b"


def test_an_error_that_is_logged_and_raised_again_is_told_once() -> None:
    code = "import logging\ntry:\n    int('x')\nexcept ValueError:\n    logging.exception('failed')\n    raise"
    assert found(printed_by(code)).message == "ValueError: invalid literal for int() with base 10: 'x'"


def test_what_was_said_after_an_exception_that_was_handled_is_told() -> None:
    code = "import sys, traceback\ntry:\n    int('x')\nexcept ValueError:\n    traceback.print_exc()\n"
    code += "sys.exit('bad config')"
    assert found(printed_by(code)).message.endswith("\nbad config")


def test_an_exception_that_python_ignored_is_not_the_error() -> None:
    code = "class A:\n    def __del__(self): int('y')\na = A()\nint('x')"
    printed = printed_by(code)
    assert "Exception ignored in" in printed
    assert found(printed).message == "ValueError: invalid literal for int() with base 10: 'x'"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups before Python 3.11")
@pytest.mark.parametrize("before", ["", "[rank0]: "])
def test_an_exception_group_is_told_with_what_it_holds(before: str) -> None:
    code = "raise ExceptionGroup('many', [ValueError('a'), ExceptionGroup('inner', [TypeError('b')])])"
    message = (
        "ExceptionGroup: many (2 sub-exceptions)\nValueError: a\nExceptionGroup: inner (1 sub-exception)\nTypeError: b"
    )
    assert found(decorated(printed_by(code), before)).message == message


def test_a_crash_in_cpp_is_told_with_what_it_says() -> None:
    frames = "Exception raised from check at pair.cc:1 (most recent call first):\nframe #0: c10::Error\n"
    error = found("step=1\n" + GLOO + frames, crashed=True)
    assert error.message == (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet': [enforce fail at "
        "gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 1001000 vs 12"
    )
    assert not error.is_lost_contact
    assert "another number of steps" in str(hint(error.message))


def test_a_crash_is_told_before_an_exception_that_was_handled_and_otherwise_after_it() -> None:
    assert found(BROKEN + GLOO, crashed=True).message.startswith("terminate called")
    assert found(BROKEN + GLOO).message == "ValueError: the data is broken"


def test_nccls_watchdog_is_told_and_what_it_means() -> None:
    line = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
    error = found(f"[rank1]:[E502 12:00:00.123456 ProcessGroupNCCL.cpp:632] {line} ran for 10000 ms\n", crashed=True)
    assert line in error.message
    assert "Not every rank came" in str(hint(error.message))
    what = f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0] {line}\n"
    assert found(what, crashed=True).message.endswith(line)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error of a machine without a GPU")
def test_cuda_without_a_gpu_is_told_with_the_remedy() -> None:
    with pytest.raises((AssertionError, RuntimeError)) as raised:
        torch.zeros(1).cuda()
    report = describe_error(raised.value, None)
    assert "trainer.device" in report.splitlines()[1]
    for said in (
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. ...",
    ):
        assert "trainer.device" in str(hint(said))


def test_pythons_own_words_on_a_crash_are_told_with_the_frames_innermost_last() -> None:
    code = "import faulthandler\ndef f(): faulthandler._sigsegv()\nf()"
    error = found(printed_by(code, "-X", "faulthandler"), crashed=True)
    assert error.message == "Fatal Python error: Segmentation fault"
    assert error.context == '  File "<string>", line 3 in <module>\n  File "<string>", line 2 in f'


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, "
        "but not set",
        "KeyError: 'LOCAL_RANK'",
    ],
)
def test_a_script_that_no_launcher_has_started_is_told_to_use_one(said: str) -> None:
    assert 'distribution="torchrun"' in str(hint(said))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "Raise accumulate="),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "Raise accumulate="),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "SMDDP_DEVICE=cpu"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with", "tensors of the CPU"),
        ("RuntimeError: Expected all tensors to be on the same device, but got mat2 is on cpu", ".to(trainer.device)"),
        ("RuntimeError: Too many open files. Communication with the workers is no longer possible.", r".clone()"),
        ("RuntimeError: received 0 items of ancdata", "ulimit -n"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub'", "a larger volume_size"),
    ],
)
def test_a_frequent_error_of_torch_is_told_with_the_remedy(said: str, remedy: str) -> None:
    assert remedy in str(hint(said))


@pytest.mark.parametrize("of_module", [True, False])
def test_what_a_started_worker_cannot_unpickle_is_told_with_the_remedy(of_module: bool) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)) as raised:
        pickle.dumps(NAMELESS if of_module else lambda: None)
    assert 'multiprocessing_context="fork"' in describe_error(raised.value, None).splitlines()[1]


def test_batchnorm_on_one_sample_is_told_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value") as raised:
        torch.nn.BatchNorm1d(2)(torch.ones(1, 2))
    assert 'tail="short"' in describe_error(raised.value, None).splitlines()[1]


@pytest.mark.parametrize("wrapper", [AutocastModel, HalfWeightsModel, PureHalfModel, Replica, ShardedModel])
def test_an_attribute_of_the_scripts_model_is_looked_for_at_trainer_module(wrapper: type[torch.nn.Module]) -> None:
    with pytest.raises(AttributeError) as raised:
        _ = object.__new__(wrapper).generate
    assert "trainer.module" in describe_error(raised.value, None).splitlines()[1]
