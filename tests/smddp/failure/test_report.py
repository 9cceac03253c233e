import builtins
import linecache
import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.cluster import OF_RUN_DIRECTORY, Cluster
from smddp.errors import CheckpointError
from smddp.failure.report import (
    LIMIT,
    describe_error,
    describe_exit,
    describe_rank_exit,
    find_printed,
    within_limit,
)
from smddp.failure.report_file import record
from smddp.job import Channels


def rank(number: int, of: int = 4) -> Cluster:
    return Cluster(
        rank=number,
        local_rank=0,
        world_size=of,
        local_world_size=1,
        node_rank=number,
        node_count=of,
        hosts=tuple(f"algo-{index + 1}" for index in range(of)),
        master_addr="algo-1",
        master_port=7777,
        launcher="sagemaker",
    )


def raised(function) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def load_labels() -> None:
    raise ValueError("label 12 is not in 0..9")


def train() -> None:
    load_labels()


def test_tells_type_message_rank_host_and_the_users_frames_innermost_last() -> None:
    report = describe_error(raised(train), rank(2))

    first, *frames = report.splitlines()
    assert first == "ValueError: label 12 is not in 0..9 (rank 2 of 4 on algo-3)"
    assert frames[-2].endswith("train: load_labels()")
    assert frames[-1].endswith('load_labels: raise ValueError("label 12 is not in 0..9")')
    assert "failure/test_report.py" in frames[-1]


def test_a_failure_before_the_rank_is_known_is_told_too() -> None:
    assert describe_error(raised(train), None).startswith("ValueError: label 12 is not in 0..9\n")


def test_library_frames_are_left_out_except_the_innermost() -> None:
    import json

    report = describe_error(raised(lambda: json.loads("{")), rank(0))

    assert "<lambda>: report = describe_error" in report
    assert "loads" not in report.replace("json.loads", "")
    assert "json/decoder.py" in report.splitlines()[-1]


@pytest.mark.parametrize("has_noticed", [False, True], ids=["", "the loader has noticed"])
@pytest.mark.parametrize("error", ["ConnectionResetError(104, 'Connection reset by peer')", "EOFError()"])
@pytest.mark.parametrize(
    ("files", "is_of_worker"),
    [
        (
            ["/torch/utils/data/dataloader.py", "/lib/multiprocessing/queues.py", "/lib/multiprocessing/connection.py"],
            True,
        ),
        (["/torch/utils/data/dataloader.py", "/torch/utils/data/_utils/fetch.py", "/home/me/dataset.py"], False),
        (["/torch/utils/data/dataloader.py", "/torch/_utils.py"], False),  # a worker's error, raised again
        (["/lib/multiprocessing/connection.py"], False),
        (["/home/me/download.py"], False),
    ],
)
def test_a_broken_connection_between_torchs_loader_and_a_worker_is_a_lost_worker(
    error: str, files: list[str], is_of_worker: bool, has_noticed: bool
) -> None:
    def fail() -> None:
        try:
            break_off()
        except (OSError, EOFError) as broken:
            if not has_noticed:
                raise
            raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly") from broken

    def break_off() -> None:
        names = {"below": lambda: None}
        text = f"def below(): raise {error}"
        for file in reversed(files):
            exec(compile(text, file, "exec"), names)
            names["above"] = names["below"]
            text = "def below(call=above): call()"
        names["below"]()

    assert ("A DataLoader worker ended while" in describe_error(raised(fail), rank(1))) is is_of_worker


def test_a_check_of_ours_is_not_where_the_fault_lies() -> None:
    def asks_for_a_channel() -> None:
        Channels(training=Path("/data"))["trian"]

    told = describe_error(raised(asks_for_a_channel), rank(0))
    assert "There is no channel 'trian'" in told
    assert told.splitlines()[-1].endswith('Channels(training=Path("/data"))["trian"]')


def test_before_the_script_begins_a_refusal_stands_alone_and_a_defect_names_its_place() -> None:
    def innermost(error: BaseException) -> BaseException:
        assert error.__traceback__ is not None
        while error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next
        return error

    refused = innermost(raised(lambda: Channels(training=Path("/data"))["trian"]))
    assert ".py:" not in describe_error(refused, rank(0))
    defect = innermost(raised(lambda: within_limit(None)))  # type: ignore[arg-type]
    assert "display_text.py:" in describe_error(defect, rank(0))


def test_the_first_cause_is_told() -> None:
    def outer() -> None:
        try:
            train()
        except ValueError as error:
            raise RuntimeError("could not prepare the data") from error

    report = describe_error(raised(outer), rank(0))

    assert report.startswith("RuntimeError: could not prepare the data")
    assert "caused by ValueError: label 12 is not in 0..9" in report
    assert "load_labels: raise ValueError" in report.splitlines()[-1]


def test_a_cause_that_the_message_quotes_is_not_told_again() -> None:
    def outer() -> None:
        try:
            train()
        except ValueError as error:
            raise RuntimeError(f"the data are refused: {error}") from error

    report = describe_error(raised(outer), rank(0))

    assert "caused by" not in report
    assert "load_labels: raise ValueError" in report.splitlines()[-1]


def test_a_cause_that_was_suppressed_is_not_told() -> None:
    def outer() -> None:
        try:
            train()
        except ValueError:
            raise RuntimeError("clean") from None

    assert "caused by" not in describe_error(raised(outer), rank(0))


def test_deep_recursion_keeps_the_message_and_the_innermost_frames() -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            raise KeyError("the deepest point")
        recurse(depth - 1)

    report = describe_error(raised(lambda: recurse(300)), rank(0))

    assert len(report) <= LIMIT
    assert report.startswith("KeyError: 'the deepest point' (rank 0")
    assert 'raise KeyError("the deepest point")' in report.splitlines()[-1]
    assert "303 frames in all" in report


def test_a_huge_message_keeps_its_beginning_its_end_the_rank_and_the_innermost_frame() -> None:
    def fail() -> None:
        raise RuntimeError("BEGIN " + "x" * 100_000 + " END")

    report = describe_error(raised(fail), rank(1))

    assert len(report) <= LIMIT
    assert report.startswith("RuntimeError: BEGIN")
    assert " END (rank 1 of 4 on algo-2)" in report
    assert "fail: raise RuntimeError" in report.splitlines()[-1]


def test_a_name_is_told_whole_or_not_at_all() -> None:
    names = [f"base_model.model.layers.{number}.attention.query.lora_A.default.weight" for number in range(24)]
    (told,) = describe_error(
        CheckpointError(f"it is of another model: 24 missing: {', '.join(names)}"), rank(1)
    ).splitlines()
    assert " ... " in told
    shown = re.findall(r"[\w.]*(?:layers|weight|lora)[\w.]*", told)
    assert len(shown) > 4
    assert set(shown) <= set(names)
    assert told.endswith(f"{names[-1]} (rank 1 of 4 on algo-2)")


def test_an_exception_that_cannot_be_printed_is_told_all_the_same() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    def fail() -> None:
        raise BrokenError

    assert "BrokenError" in describe_error(raised(fail), rank(0))


def test_a_source_line_of_any_length_fits() -> None:
    code = "x = '" + "a" * 10_000 + "' + undefined_name"
    linecache.cache["/made/up.py"] = (len(code), None, [code], "/made/up.py")

    report = describe_error(raised(lambda: exec(compile(code, "/made/up.py", "exec"), {})), rank(0))

    assert len(report) <= LIMIT
    assert report.startswith("NameError: name 'undefined_name' is not defined")
    assert "made/up.py:1 <module>: x = 'aaa" in report.splitlines()[-1]


def test_frames_in_files_with_long_names_fit() -> None:
    name = f"/{'d' * 250}/{'f' * 250}.py"
    code = compile("def f(n):\n    1 / 0 if n == 0 else f(n - 1)\nf(3)", name, "exec")

    report = describe_error(raised(lambda: exec(code, {})), rank(0))

    assert len(report) <= LIMIT
    assert report.splitlines()[-1].startswith("  ddd")
    assert report.splitlines()[-1].endswith("py:2 f")


@given(st.text(max_size=3000), st.integers(0, 40))
def test_no_message_and_no_depth_breaks_the_limit_or_the_encoding(message: str, depth: int) -> None:
    def recurse(left: int) -> None:
        if left == 0:
            raise ValueError(message)
        recurse(left - 1)

    report = describe_error(raised(lambda: recurse(depth)), rank(0))

    assert len(report) <= LIMIT
    assert report.encode("utf-8").decode() == report
    assert report.startswith("ValueError")


def test_lone_surrogates_are_written_as_escapes(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("no file \udcff")

    record(tmp_path, describe_error(raised(fail), rank(0)))

    assert "no file \\udcff" in (tmp_path / "failure").read_text(encoding="utf-8")


def test_names_the_machine_where_the_launcher_names_no_hosts() -> None:
    made_up = {"hosts": "default: torchrun names no hosts"}
    several = replace(rank(1), hosts=("node-0", "node-1", "node-2", "node-3"), sources=made_up)
    assert f"(rank 1 of 4 on {socket.gethostname()})" in describe_error(raised(load_labels), several)
    alone = replace(rank(0, 1), hosts=("localhost",), sources=made_up)
    assert "(rank 0 of 1 on localhost)" in describe_error(raised(load_labels), alone)


def test_an_error_without_a_traceback_is_told_by_its_message() -> None:
    assert describe_error(ValueError("never raised"), rank(0)) == "ValueError: never raised (rank 0 of 4 on algo-1)"


def test_a_syntax_error_of_the_script_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    error = raised(lambda: compile((tmp_path / "broken.py").read_text(), "broken.py", "exec"))
    assert "SyntaxError: invalid syntax" in describe_error(error, rank(0))


if sys.version_info >= (3, 11):

    def test_notes_are_part_of_the_message() -> None:
        error = raised(train)
        error.add_note("in file data.csv, line 7")
        assert "in file data.csv, line 7" in describe_error(error, rank(0))


def test_frames_without_source_are_named_by_file_and_line() -> None:
    report = describe_error(raised(lambda: exec(compile("1 / 0", "/gone/script.py", "exec"), {})), rank(0))
    assert report.splitlines()[-1] == "  gone/script.py:1 <module>"


def test_a_reason_that_fits_is_left_alone() -> None:
    assert within_limit("a" * LIMIT) == "a" * LIMIT
    assert len(within_limit("a" * (LIMIT + 1))) == LIMIT


ROOT = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad label 11
"""
PEER = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    dist.all_reduce(x)
RuntimeError: Connection closed by peer [127.0.0.1]:4242
"""


def outside(tail: str, *, code: int = 1, many: bool = False) -> str:
    return describe_exit("train.py", "algo-1", code, tail, many=many, code_dir=Path("no-code"))


def test_of_many_ranks_the_first_exception_counts() -> None:
    reason = outside("step=1 loss=2\n" + ROOT + PEER + "Rank 1 ended with code 1.\n", many=True)
    assert reason.startswith("train.py ended with exit code 1 on algo-1: ValueError: bad label 11\nTraceback")
    assert "Connection closed" not in reason


def test_of_one_process_the_last_exception_counts_because_earlier_ones_were_caught() -> None:
    assert outside(PEER + "retrying\n" + ROOT).splitlines()[0].endswith(": ValueError: bad label 11")


def test_of_a_chain_the_exception_that_was_not_caught_counts() -> None:
    cause = "Traceback (most recent call last):\n  File 'a', line 1\nKeyError: 'x'\n"
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert outside(cause + link + ROOT, many=True).splitlines()[0].endswith(": ValueError: bad label 11")


def test_without_a_traceback_the_last_lines_are_given() -> None:
    reason = outside("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lr 0.1\n", code=2)
    assert reason == (
        "train.py ended with exit code 2 on algo-1: train.py: error: unrecognized arguments: --lr 0.1\n"
        "usage: train.py [-h]"
    )


def test_warnings_and_rules_do_not_count_as_the_last_line() -> None:
    noise = "[W1121 08:00:00.0 socket.cpp:1] retry\nx.py:1: UserWarning: old\n-----\n"
    assert outside("----\nmpirun detected that one process failed\n" + noise).endswith(
        ": mpirun detected that one process failed"
    )


def test_a_silent_death_is_explained_by_its_signal() -> None:
    assert outside("", code=137) == (
        "train.py ended with exit code 137 (killed by SIGKILL, often because the host ran out of memory) on algo-1."
    )


def test_never_longer_than_what_the_service_keeps_and_the_error_comes_first() -> None:
    frames = "".join(f'  File "module_{number}.py", line {number}\n    call()\n' for number in range(200))
    reason = outside(f"Traceback (most recent call last):\n{frames}ValueError: boom\n")
    assert len(reason) == LIMIT
    assert reason.startswith("train.py ended with exit code 1 on algo-1: ValueError: boom\n...")
    assert reason.endswith('File "module_199.py", line 199\n    call()')
    assert LIMIT - 80 < len(outside("Traceback (most recent call last):\nValueError: " + "x" * 5000)) <= LIMIT


def of_rank(tail: str | None, code: int = 1, *, many: bool = False) -> str:
    return describe_rank_exit(code, rank=1, world_size=2, host="algo-2", tail=tail, many=many)


def test_a_rank_that_did_not_say_so_itself_has_failed_with_what_it_printed() -> None:
    assert of_rank(ROOT) == "ValueError: bad label 11 (rank 1 of 2 on algo-2)\n" + ROOT.rpartition("\nValueError")[0]
    assert of_rank("no such file\n") == "Rank 1 of 2 on algo-2 ended with code 1: no such file"
    assert of_rank("") == of_rank(None) == "Rank 1 of 2 on algo-2 ended with code 1, and said no reason."


def test_whose_exception_it_is_is_left_open_if_several_ranks_printed_some() -> None:
    assert "(rank 1 of 2 on algo-2)" in of_rank(ROOT, many=True)
    assert "(one of 2 ranks; the first to end was rank 1 of 2 on algo-2)" in of_rank(ROOT + PEER, many=True)


def test_what_a_killed_rank_printed_before_is_not_why_it_was_killed() -> None:
    told, *lines = of_rank(ROOT, 137).splitlines()
    assert told.endswith("was killed by SIGKILL, often because the host ran out of memory.")
    assert lines == ["Its last lines on standard error:", *(f"  {line}" for line in ROOT.splitlines())]
    whole = outside(ROOT, code=137).splitlines()[0]
    assert whole.endswith("(killed by SIGKILL, often because the host ran out of memory) on algo-1.")


def test_a_crash_is_told_with_what_it_means() -> None:
    abort = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  op.preamble.length <= 12\n"
    )
    first, second = of_rank(abort, 134).splitlines()
    assert first.startswith("Rank 1 of 2 on algo-2 was killed by SIGABRT: terminate called after throwing")
    assert first.endswith("op.preamble.length <= 12")
    assert second.startswith("Ranks called different collectives")


@given(st.text(max_size=3000), st.integers(0, 60), st.sampled_from([1, 134]))
def test_an_errors_last_line_is_kept_within_the_limit(message: str, frames: int, code: int) -> None:
    traceback = "Traceback (most recent call last):\n" + '  File "module.py", line 3, in f\n    call()\n' * frames
    report = of_rank(f"{traceback}ValueError: {message}\nthe last line\n", code)
    assert len(report) <= LIMIT
    assert "the last line" in report


def test_what_an_exception_group_holds_is_told() -> None:
    group = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("no exception groups before Python 3.11")
    report = describe_error(group("many", [ValueError("a"), group("inner", [TypeError("b")])]), rank(0))
    assert report.splitlines()[1:] == ["it holds ValueError: a", "it holds TypeError: b"]


def test_a_missing_module_of_awss_images_is_never_to_be_installed_from_an_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")

    def imports() -> None:
        raise ModuleNotFoundError("No module named 'smdistributed'")

    told = describe_error(raised(imports), rank(1))
    assert "Only AWS's images for it have it" in told
    assert "requirements.txt" not in told
    assert "pip install" not in told


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        (
            {"SM_CURRENT_HOST": "algo-1"},
            "Add {} to requirements.txt in source_dir; a module of your own belongs in source_dir itself.",
        ),
        ({"SM_CURRENT_HOST": "algo-1", OF_RUN_DIRECTORY: "SM_CURRENT_HOST"}, "Install it: pip install {}"),
    ],
)
@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("albumentations", "albumentations"),
        ("cv2", "opencv-python"),
        ("sentence_transformers", "sentence-transformers"),
        ("own", None),
        ("deeper", None),
        ("namespace", None),
        ("found.but_not_this", None),
        ("_ctypes", None),
    ],
)
def test_a_missing_module_names_the_package_to_add_unless_it_is_the_users_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    remedy: str,
    module: str,
    package: str | None,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for file in ("own.py", "src/deeper.py", "namespace/part.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)

    def imports() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}")

    error = f"Traceback (most recent call last):\n  File 'train.py'\nModuleNotFoundError: No module named {module!r}\n"
    reports = [
        describe_error(raised(imports), rank(1)),
        describe_exit("train.py", "algo-1", 1, error, many=False, code_dir=tmp_path),
        describe_rank_exit(1, rank=1, world_size=2, host="algo-1", tail=error),
    ]
    for report in reports:
        assert (remedy.partition("{}")[0] in report) is (package is not None)
        assert package is None or report.splitlines()[1] == remedy.format(package)


@pytest.mark.parametrize(("many", "whose"), [(False, "Its last lines"), (True, "The ranks' last lines")])
def test_what_a_crashed_rank_printed_last_is_told_and_not_taken_for_the_reason(many: bool, whose: str) -> None:
    printed = "step=1\n[W1127 08:00:00.0 a.cpp:1] noise\n\x1b]0;title\x07\x1b[31mstep=2\x1b[0m\n50%\r100%\n"
    assert of_rank(printed, 139, many=many) == (
        f"Rank 1 of 2 on algo-2 was killed by SIGSEGV.\n{whose} on standard error:\n  step=1\n  step=2\n  100%"
    )


def test_the_last_lines_of_a_killed_rank_are_few_and_the_end_of_them() -> None:
    reason = of_rank("".join(f"line {number}\n" for number in range(1000)) + "x" * 5000, 137)
    assert len(reason) < 600
    assert reason.endswith(f"  line 999\n  {'x' * 197}...")


CRASH = """free(): invalid pointer
Fatal Python error: Aborted

Thread 0x00007f0001 (most recent call first):
  File "{installed}/threading.py", line 331 in wait

Thread 0x00007f0000 (most recent call first):
  File "{installed}/ctypes/__init__.py", line 519 in string_at
  File "/code/train.py", line 21 in step
  File "/code/train.py", line 45 in main
  File "{installed}/site-packages/smddp/training/run.py", line 86 in run
  File "/code/train.py", line 47 in <module>

Extension modules: numpy._core (total: 9)
""".format(installed=Path(os.__file__).parent)


def test_a_crash_is_told_with_the_scripts_own_frames_of_the_main_thread() -> None:
    assert of_rank("step=1\n" + CRASH, 134) == (
        "Rank 1 of 2 on algo-2 was killed by SIGABRT: free(): invalid pointer\n"
        "  code/train.py:47 <module>\n  code/train.py:45 main\n  code/train.py:21 step"
    )


def test_of_ranks_that_crash_the_one_that_did_not_lose_another_counts() -> None:
    lost = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection closed by peer\n"
    assert ": free(): invalid pointer\n" in of_rank(lost + CRASH, 134, many=True)
    assert "Connection closed by peer" in of_rank(lost, 134)


@pytest.mark.parametrize(
    "printed",
    [
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 Rank 0] Process "
        "group watchdog thread terminated with exception: Watchdog caught collective operation timeout: WorkNCCL(S\n",
        "[rank0]:[E1127 08:00:00.0 ProcessGroupNCCL2.cpp:9] Watchdog caught collective operation timeout: NCCL "
        "operation timed out\n",
    ],
    ids=["nccl", "nccl2"],
)
def test_a_rank_that_nccls_watchdog_ends_is_a_victim(printed: str) -> None:
    found = find_printed(134, printed + CRASH.replace("free(): invalid pointer\n", ""))
    assert found is not None
    assert found.is_lost_contact


def test_a_rank_that_lost_another_one_and_aborts_at_its_end_is_a_victim() -> None:
    printed = find_printed(134, PEER + CRASH.replace("free(): invalid pointer\n", ""))
    assert printed is not None
    assert printed.is_lost_contact


def test_a_killed_worker_that_the_script_printed_is_explained() -> None:
    printed = ROOT.replace(
        "ValueError: bad label 11", "RuntimeError: DataLoader worker (pid 7) is killed by signal: {}. "
    )
    assert "\nA DataLoader worker was killed by SIGBUS, often because /dev/shm is full.\n" in of_rank(
        printed.format("Bus error")
    )
    assert "\nA DataLoader worker was killed by SIGKILL, often because the host ran out" in of_rank(
        printed.format("Killed")
    )
