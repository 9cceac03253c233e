"""``smddp checkpoints``: what a user sees, and that whatever goes wrong is one line and exit code 2."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
import torch
from moto import mock_aws
from torch import nn

from smddp import cli
from smddp.checkpoint.stores import StoreError, open_store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from tests.smddp.checkpoint.by_hand import write_checkpoint

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, and give its exit code and what it wrote."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object, answer: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smddp", "checkpoints", *map(str, arguments)])
        answers = io.StringIO(answer or "")
        monkeypatch.setattr(answers, "isatty", lambda: answer is not None)
        monkeypatch.setattr(sys, "stdin", answers)
        with pytest.raises(SystemExit) as ended:
            cli.main()
            sys.exit(0)
        written = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else int(code or 0)), written.out, written.err

    return run


def save(place: object, step: int, *, epoch: int = 0, **metrics: float) -> None:
    torch.manual_seed(step)
    state = {"model": nn.Linear(3, 2).state_dict(), "optimizer": {"state": {}}}
    write_checkpoint(open_store(str(place)), step, state, epoch=epoch, metrics=metrics)


def damage(place: Path, step: int) -> None:
    (file,) = (place / f"step-{step:012}").rglob("model.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def rows(shown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Checkpoints of steps 10, 20 and 30, a damaged one of step 40, an interrupted save, and other people's files."""
    place = tmp_path / "checkpoints"
    for step, accuracy in [(10, 0.5), (20, 0.75), (30, 0.625), (40, 0.9)]:
        save(place, step, epoch=step // 20, accuracy=accuracy)
    damage(place, 40)
    (place / "step-000000000050" / "5f3a9c01d2e4-0001").mkdir(parents=True)
    (place / "tensorboard").mkdir()
    (place / "x.sagemaker-uploading").touch()
    return place


def left(place: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in place.glob("step-*"))


def test_ls_shows_the_newest_first_without_reading_every_byte(run: Run, place: Path) -> None:
    code, shown, _ = run("ls", place)
    assert code == 0
    assert str(place) in shown
    table = rows(shown)
    assert [row[0] for row in table] == ["50", "40", "30", "20", "10"]
    assert table[1][1] == "3"
    assert table[1][-2:] == ["0.9", "not verified"]
    assert table[0][-1] == "incomplete: it has no manifest.json: its save was interrupted"


def test_ls_verify_says_what_is_valid_and_why_not(run: Run, place: Path) -> None:
    code, shown, _ = run("ls", place, "--verify")
    states = [row[-1] for row in rows(shown)]
    assert code == 0
    assert states[1].startswith("damaged: model.safetensors was changed")
    assert states[2:] == ["valid"] * 3


def test_ls_shows_twenty_and_says_how_to_see_all(run: Run, tmp_path: Path) -> None:
    for step in range(25):
        save(tmp_path, step)
    _, shown, _ = run("ls", tmp_path)
    assert [int(row[0]) for row in rows(shown)] == list(range(24, 4, -1))
    assert "--all shows the older ones" in shown
    _, shown, _ = run("ls", tmp_path, "--all")
    assert len(rows(shown)) == 25
    assert "--all" not in shown


def test_ls_of_one_checkpoint_shows_it(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown, _ = run("ls", f"{place}/step-000000000020/")
    assert [row[0] for row in rows(shown)] == ["20"]
    monkeypatch.chdir(place / "step-000000000030")
    _, shown, _ = run("ls", ".")
    assert [row[0] for row in rows(shown)] == ["30"]


def test_ls_with_many_metrics_shows_some_and_names_the_rest(run: Run, tmp_path: Path) -> None:
    save(tmp_path, 1, **{f"metric{index}": float(index) for index in range(8)})
    _, shown, _ = run("ls", tmp_path)
    assert len(rows(shown)[0]) == 4 + 5 + 1
    assert "There are more metrics: metric5, metric6, metric7" in shown


def test_ls_into_a_pipe_is_never_wrapped(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    _, shown, _ = run("ls", place)
    assert "incomplete: it has no manifest.json: its save was interrupted" in shown


def test_verify_names_what_is_damaged_and_ends_with_1(run: Run, place: Path) -> None:
    code, shown, _ = run("verify", place)
    assert code == 1
    lines = shown.splitlines()
    assert [line.split(",")[0].split(":")[0] for line in lines[:5]] == [f"step {step}" for step in (10, 20, 30, 40, 50)]
    assert ": valid" in lines[0]
    assert "damaged: model.safetensors was changed" in lines[3]
    assert lines[-1] == "3 valid, 1 incomplete, 1 damaged"


def test_verify_ends_with_0_when_nothing_is_damaged(run: Run, place: Path) -> None:
    assert run("verify", place / "step-000000000030")[0] == 0
    assert run("verify", place / "step-000000000040")[0] == 1
    (place / "step-000000000040" / "manifest.json").unlink()
    code, shown, _ = run("verify", place)
    assert (code, shown.splitlines()[-1]) == (0, "3 valid, 2 incomplete")


def test_verify_of_interrupted_saves_alone_ends_with_1(run: Run, tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000000000001" / "manifest.json").unlink()
    assert run("verify", tmp_path)[0] == 1


def test_prune_shows_what_would_go_and_removes_nothing_in_a_dry_run(run: Run, place: Path) -> None:
    code, shown, _ = run("prune", place, "--keep-last", 1, "--dry-run")
    assert code == 0
    assert shown.splitlines()[0].startswith("would remove: step 10, ")
    assert "2 to remove (" in shown
    assert left(place) == [10, 20, 30, 40, 50]


def test_prune_removes_with_yes_and_leaves_what_is_not_ours(run: Run, place: Path) -> None:
    code, shown, _ = run("prune", place, "--keep-last", 1, "--yes")
    assert (code, shown.splitlines()[-1]) == (0, "removed 2")
    assert left(place) == [30, 40, 50], "30 is the newest valid one; later ones may be saves under way"
    assert (place / "tensorboard").exists()
    assert (place / "x.sagemaker-uploading").exists()


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_prune_asks_on_a_terminal(run: Run, place: Path, answer: str, removed: bool) -> None:
    code, shown, _ = run("prune", place, "--keep-last", 1, answer=answer)
    assert "Remove them?" in shown
    assert (10 not in left(place)) is removed
    assert (code == 0) is removed


def test_prune_without_a_terminal_and_yes_removes_nothing(run: Run, place: Path) -> None:
    code, _, told = run("prune", place, "--keep-last", 1)
    assert code == 2
    assert told == "smddp: nothing was removed: nobody is here to be asked; --yes removes without asking\n"
    assert len(left(place)) == 5


def test_prune_keeps_the_best_and_every_nth(run: Run, place: Path) -> None:
    run("prune", place, "--keep-last", 1, "--keep-best", 1, "--metric", "accuracy", "--yes")
    assert left(place) == [20, 30, 40, 50]
    run("prune", place, "--keep-last", 1, "--keep-every", 20, "--yes")
    assert left(place) == [20, 30, 40, 50]
    code, shown, _ = run("prune", place, "--keep-last", 9)
    assert (code, shown) == (0, "0 to remove (0 B), 2 to keep\n")


def test_best_prints_the_path_alone(run: Run, place: Path) -> None:
    code, shown, told = run("best", place, "--metric", "accuracy")
    assert (code, shown) == (0, f"{place}/step-000000000020\n")
    assert "the largest accuracy; where a smaller one is better, say --mode min" in told
    assert run("best", place, "--metric", "accuracy", "--mode", "min")[1] == f"{place}/step-000000000010\n"


def test_export_and_import_go_round(run: Run, place: Path, tmp_path: Path) -> None:
    code, shown, _ = run("export", place / "step-000000000020", tmp_path / "w.pt")
    assert (code, shown) == (0, f"wrote {tmp_path}/w.pt: model of step 20\n")
    assert set(torch.load(tmp_path / "w.pt", weights_only=True)) == {"weight", "bias"}
    assert run("export", place, tmp_path / "model")[0] == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.pt", "model.safetensors"]
    arguments = ("--format", "torch", "--part", "model", "--part", "optimizer", "--part", "model")
    code, shown, _ = run("export", place, tmp_path / "all", *arguments)
    assert (code, shown) == (0, f"wrote {tmp_path}/all: model, optimizer of step 30\n")
    code, shown, _ = run("import", tmp_path / "all", tmp_path / "new", "--step", 7, "--epoch", 2)
    assert (code, shown) == (0, f"wrote step 7 in {tmp_path}/new: model, optimizer\n")
    assert run("verify", tmp_path / "new")[0] == 0


BAD = [
    (["ls", "nothing"], "there is no directory "),
    (["ls", "empty"], "there is no checkpoint in "),
    (["ls", "foreign"], "there is no checkpoint in "),
    (["ls", "file"], "is a file: give the directory that the checkpoints lie in"),
    (["ls", "job"], "did you mean "),
    (["ls", "step-000000000099"], "there is nothing at "),
    (["ls", "empty/step-000000000007"], "there is nothing at "),
    (["ls", "hollow/step-000000000007"], "there is no checkpoint "),
    (["ls", ""], "is no location for checkpoints"),
    (["ls", "gs://bucket/run"], "is no location for checkpoints"),
    (["ls", "s3://"], "names no bucket"),
    (["ls", "s3://B/run"], "names no bucket"),
    (["verify", "nothing"], "there is no directory "),
    (["verify", "empty"], "there is no checkpoint in "),
    (["prune", "nothing", "--yes"], "there is no directory "),
    (["prune", "empty", "--yes"], "there is no checkpoint in "),
    (["prune", "good/step-000000000001", "--yes"], "is one checkpoint: give the location that it lies in"),
    (["prune", "good", "--keep-last", "0", "--yes"], "last is 0: at least one checkpoint must stay"),
    (["prune", "good", "--keep-best", "1", "--yes"], "--keep-best needs --metric"),
    (["prune", "good", "--keep-best", "1", "--metric", "f1", "--yes"], "has a value of 'f1', only of loss"),
    (["best", "nothing", "--metric", "f1"], "there is no directory "),
    (["best", "good", "--metric", "f1"], "has a value of 'f1', only of loss"),
    (["best", "good/step-000000000001", "--metric", "loss"], "is one checkpoint"),
    (["export", "nothing", "w.pt"], "there is nothing at "),
    (["export", "empty", "w.pt"], "there is no checkpoint in "),
    (["export", "file", "w.pt"], "is no checkpoint"),
    (["export", "good", "file"], "is there already"),
    (["export", "good", "s3://bucket/model"], "copy that there (aws s3 cp)"),
    (["export", "good", "w.doc"], "no format is known for "),
    (["export", "good", "file/w.pt"], "could not write "),
    (["export", "good", "w.pt", "--part", "teacher"], "has no teacher, only model, optimizer"),
    (["import", "nothing", "new"], "there is nothing at "),
    (["import", "file", "new"], "is not a file that torch.save wrote"),
    (["import", "empty", "new"], "has nothing to import: a directory has one of model.safetensors, "),
    (["import", "good", "new"], "is a checkpoint already: copy its directory"),
    (["import", "good/step-000000000001", "new"], "is a checkpoint already: copy its directory"),
    (["import", "text.tar.gz", "new"], "is not a model.tar.gz, or it is damaged"),
    (["import", "w0.pt", "good/step-000000000001"], "is the name of one checkpoint: give the location that it lies in"),
    (["import", "w0.pt", "new/step-000000000007"], "is the name of one checkpoint: give the location that it lies in"),
    (["import", "w0.pt", "new", "--step", "-1"], "step is -1: give a whole number"),
    (["import", "w0.pt", "file"], "file"),
    (["import", "w0.pt", "good", "--step", "1"], "already: remove it, or give another step"),
]


@pytest.mark.parametrize(
    ("arguments", "told"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_is_one_line_and_code_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "foreign/logs", "job/checkpoints", "hollow/step-000000000007"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("text")
    (tmp_path / "text.tar.gz").write_text("text")
    torch.save(nn.Linear(1, 1).state_dict(), "w0.pt")
    save(tmp_path / "good", 1, loss=0.5)
    code, shown, error = run(*arguments)
    assert (code, shown) == (2, "")
    assert error.startswith("smddp: ")
    assert told in error
    assert error.count("\n") == 1
    assert left(tmp_path / "good") == [1]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket in this process's own S3."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket/runs/7"


@pytest.mark.slow
def test_every_command_works_in_s3(run: Run, s3: str, tmp_path: Path) -> None:
    for step, accuracy in [(10, 0.5), (20, 0.75), (30, 0.625)]:
        save(s3, step, accuracy=accuracy)
    assert [row[0] for row in rows(run("ls", s3)[1])] == ["30", "20", "10"]
    assert run("verify", s3)[:2] == (0, run("verify", f"{s3}/")[1])
    _, shown, _ = run("best", s3, "--metric", "accuracy")
    assert shown == f"{s3}/step-000000000020\n"
    assert run("export", shown.strip(), tmp_path / "w.pt")[1].endswith("model of step 20\n")
    boto3.client("s3").upload_file(str(tmp_path / "w.pt"), "bucket", "weights/w.pt")
    assert run("import", "s3://bucket/weights/w.pt", "s3://bucket/new", "--step", 3)[0] == 0
    assert run("verify", "s3://bucket/new/step-000000000003")[0] == 0
    assert run("prune", s3, "--keep-last", 1, "--yes")[1].endswith("removed 2\n")
    assert [row[0] for row in rows(run("ls", s3)[1])] == ["30"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ls", "s3://missing-bucket/run"], "create the bucket (smddp never does), or correct the URI"),
        (["ls", "s3://bucket/nothing"], "there is no checkpoint in s3://bucket/nothing"),
        (["ls", "s3://bucket/run/step-000000000007"], "there is no checkpoint s3://bucket/run/step-000000000007"),
        (["import", "s3://bucket/nothing/model.tar.gz", "new"], "there is no s3://bucket/nothing/model.tar.gz"),
        (["best", "s3://missing-bucket", "--metric", "f1"], "create the bucket"),
    ],
)
def test_bad_input_in_s3_is_one_line_and_code_2(run: Run, s3: str, arguments: list[str], told: str) -> None:
    code, shown, error = run(*arguments)
    assert (code, shown) == (2, "")
    assert told in error
    assert error.count("\n") == 1


def test_s3_without_credentials_is_one_line_and_code_2(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    code, _, error = run("ls", "s3://bucket/run")
    assert code == 2
    assert "give the job a role, or set AWS_ACCESS_KEY_ID" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_help_and_the_list_load_neither_torch_nor_boto3(place: Path) -> None:
    for arguments in (["--help"], ["ls", str(place)]):
        program = (
            f"import sys; sys.argv = ['smddp', 'checkpoints', *{arguments}]\n"
            "from smddp import cli\n"
            "try: cli.main()\n"
            "except SystemExit as end: assert not end.code\n"
            "assert not {'torch', 'boto3', 'numpy'} & set(sys.modules), sys.modules.keys()"
        )
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_mistake(place: Path) -> None:
    shown = subprocess.run(
        f"set -o pipefail; {Path(sys.executable).with_name('smddp')} checkpoints ls {place} | head -1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert shown.stdout == f"{place}\n"
    assert shown.stderr == ""


def test_what_a_manifest_calls_its_metrics_is_shown_and_not_obeyed(run: Run, tmp_path: Path) -> None:
    save(tmp_path, 1, **{"[/x]": 0.5, "[red]loss": 0.25, "\x1b[2J": 1.0})
    code, shown, _ = run("ls", tmp_path)
    assert code == 0
    assert all(name in shown for name in ("[/x]", "[red]loss", r"\x1b[2J"))


def test_an_error_has_no_power_over_the_terminal(run: Run, tmp_path: Path) -> None:
    code, _, err = run("ls", tmp_path / "\x1b]0;title\x07no")
    assert code == 2
    assert "title" not in err
    assert f"{tmp_path}/no" in err


def test_one_that_may_not_be_read_does_not_hide_the_others(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = FileSystem.status

    def barred(self: FileSystem, path: Path) -> object:
        if path.parent.name == "step-000000000020":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return status(self, path)

    monkeypatch.setattr(FileSystem, "status", barred)
    manifest = place / "step-000000000020" / "manifest.json"
    code, shown, _ = run("ls", place)
    assert code == 0
    told = f"unreadable: cannot read {manifest}: Permission denied; let this user read it"
    assert [row[-1] for row in rows(shown)][2:] == ["not verified", rows(shown)[3][-1], "not verified"]
    assert rows(shown)[3][-1].startswith(told)
    (place / "step-000000000040" / "manifest.json").unlink()
    code, shown, _ = run("verify", place)
    assert (code, shown.splitlines()[-1]) == (1, "2 valid, 1 unreadable, 2 incomplete")


def test_a_store_that_cannot_be_reached_ends_the_command(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: DirectoryStore, step: int) -> None:
        raise StoreError("the server does not answer", transient=True)

    monkeypatch.setattr(DirectoryStore, "read_manifest", away)
    assert run("verify", place)[::2] == (2, "smddp: the server does not answer\n")


def test_help_of_verify_names_all_that_it_ends_with_1_for(run: Run) -> None:
    _, shown, _ = run("verify", "--help")
    assert all(status in shown for status in ("damaged", "unreadable", "newer"))
