"""What is uploaded: checked first, with the installed smddp if the code imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from estimators import source_code
from estimators.errors import EstimatorError
from estimators.source_code import SourceCode
from estimators.source_code.tree import Tree
from smddp.script_syntax import PythonModule

SCRIPT = "import smddp\n\nsmddp.run(print)\n"


def local(entry_point: str, source_dir: Path | None = None, *dependencies: Path) -> SourceCode:
    return SourceCode.of(
        {
            "entry_point": entry_point,
            "source_dir": source_dir and str(source_dir),
            "dependencies": [str(path) for path in dependencies],
        }
    )


def problems(code: SourceCode, **others: Any) -> list[str]:
    options = {"py_version": None, "isolated": False, **others}
    return [f"{p.severity}: {p}" for p in source_code.check(code, **options)]


def snapshot(directory: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    (directory / "layers").mkdir(parents=True)
    (directory / "train.py").write_text(SCRIPT)
    (directory / "layers" / "__init__.py").write_text("")
    (directory / "requirements.txt").write_text("einops==0.8\nSafetensors==0.5  # pinned\n-f wheels")
    return directory


def test_smddp_and_its_light_requirements_are_added(code: Path) -> None:
    before = snapshot(code)
    bundle = source_code.stage(local("train.py", code))
    assert bundle.directory is not None
    assert bundle.source.source_dir == str(bundle.directory)
    staged = snapshot(bundle.directory)
    assert before.items() - {("requirements.txt", before["requirements.txt"])} <= staged.items()
    assert "smddp/__init__.py" in staged
    assert not [name for name in staged if "__pycache__" in name]
    lines = staged["requirements.txt"].decode().splitlines()
    assert lines[:3] == ["einops==0.8", "Safetensors==0.5  # pinned", "-f wheels"]
    assert lines[3] == "# Added with smddp:"
    names = {line.partition(">")[0] for line in lines[4:]}
    assert names == {"numpy", "packaging", "xxhash"}
    bundle.remove()
    assert not bundle.directory.exists()
    assert snapshot(code) == before


def test_a_script_alone_is_bundled_alone(code: Path) -> None:
    bundle = source_code.stage(local(str(code / "train.py")))
    assert bundle.directory is not None
    assert {path.name for path in bundle.directory.iterdir()} == {"train.py", "smddp", "requirements.txt"}
    assert bundle.source.entry_point == "train.py"
    bundle.remove()


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("import os, smddp\n", True),
        ("from smddp.data import ElasticSampler\n", True),
        ("def main():\n    import smddp.job as job\n", True),
        ("# import smddp\nname = 'smddp'\n", False),
        ("import smddp_plus\n", False),
        ("from .smddp import run\n", False),
    ],
)
def test_only_code_that_imports_smddp_gets_it(tmp_path: Path, text: str, needed: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    assert source_code.needs_package(local("train.py", tmp_path)) == needed


def test_an_import_in_another_file_or_a_dependency_counts(tmp_path: Path) -> None:
    main, library = tmp_path / "main", tmp_path / "library"
    (main / "package").mkdir(parents=True)
    library.mkdir()
    (main / "train.py").write_text("import package\n")
    assert not source_code.needs_package(local("train.py", main, library))
    (library / "loop.py").write_text("import smddp\n")
    assert source_code.needs_package(local("train.py", main, library))
    assert not source_code.needs_package(local("train.py", main))
    (main / "package" / "__init__.py").write_text("import smddp\n")
    assert source_code.needs_package(local("train.py", main))


def test_code_that_brings_its_own_smddp_keeps_it(code: Path) -> None:
    (code / "smddp").mkdir()
    (code / "smddp" / "__init__.py").write_text("")
    bundle = source_code.stage(local("train.py", code))
    assert bundle.directory is None
    assert bundle.source.source_dir == str(code)


@pytest.mark.parametrize(
    "arguments",
    [
        {"entry_point": "train.py", "source_dir": "s3://bucket/sourcedir.tar.gz"},
        {"entry_point": "train.py", "source_dir": "src", "git_config": {"repo": "https://example.com/a.git"}},
    ],
)
def test_code_elsewhere_is_left_alone_and_said_so(arguments: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    code = SourceCode.of(arguments)
    assert not [problem for problem in problems(code) if not problem.startswith("warning: git_config")]
    assert source_code.stage(code).directory is None
    assert "smddp is not added" in caplog.text


def test_a_repository_without_a_commit_is_warned_of() -> None:
    repository = {"repo": "https://example.com/a.git", "branch": "main"}
    (problem,) = problems(SourceCode.of({"entry_point": "train.py", "git_config": repository}))
    assert problem.startswith("warning: git_config: no commit is given, so the job gets the newest commit of main")
    pinned = {**repository, "commit": "f1d2d2f9"}
    assert not problems(SourceCode.of({"entry_point": "train.py", "git_config": pinned}))


def test_a_missing_script_is_named_with_its_neighbours(code: Path) -> None:
    (problem,) = problems(local("trian.py", code))
    assert "trian.py" in problem
    assert "Did you mean 'train.py'" in problem


@pytest.mark.parametrize(
    ("entry_point", "source_dir", "remedy"),
    [
        ("code/train.py", "code", "Did you mean 'train.py'?"),
        ("train.py", None, "Did you mean 'code/train.py'?"),
        ("code/trian.py", None, "Did you mean 'code/train.py'?"),
        ("cod/train.py", None, "Did you mean 'code/train.py'?"),
        ("code/evaluation.py", None, "There are: code/train.py."),
        ("evaluation.py", "code", "There are: train.py."),
        ("other/evaluation.py", None, "Give the path of the training script."),
    ],
)
def test_the_remedy_of_a_missing_script_is_a_value_of_entry_point(
    code: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, source_dir: str | None, remedy: str
) -> None:
    monkeypatch.chdir(code.parent)
    (problem,) = problems(local(entry_point, source_dir and Path(source_dir)))
    assert problem.endswith(f". {remedy}")


def test_a_missing_directory_or_dependency_is_told_with_the_nearest(code: Path) -> None:
    near = code.parent / "coed"
    assert f"Did you mean {str(code)!r}?" in problems(local("train.py", near))[0]
    assert f"Did you mean {str(code / 'layers')!r}?" in problems(local("train.py", code, code / "layer"))[0]


def test_missing_directories_and_dependencies_are_found(code: Path) -> None:
    assert "no directory" in problems(local("train.py", code / "nowhere"))[0]
    assert "nothing.py" in problems(local("train.py", code, code / "nothing.py"))[0]


def test_a_script_outside_of_source_dir_is_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    assert "outside of source_dir" in problems(local("../other.py", code))[0]
    assert "outside of source_dir" in problems(local(str(tmp_path / "other.py"), code))[0]


def test_an_absolute_path_inside_source_dir_becomes_relative(code: Path) -> None:
    inside = local(str(code / "train.py"), code)
    assert inside.entry_point == "train.py"
    assert not problems(inside)


def test_a_syntax_error_is_found_with_its_line(code: Path) -> None:
    (code / "train.py").write_text("import os\n\nfor x in\n")
    (problem,) = problems(local("train.py", code), py_version="py310")
    assert problem.startswith("error")
    assert "line 3" in problem


def test_syntax_of_a_newer_python_in_the_container_is_only_warned_of(code: Path) -> None:
    (code / "train.py").write_text("for x in\n")
    newer = f"py{sys.version_info[0]}{sys.version_info[1] + 1}"
    assert problems(local("train.py", code), py_version=newer)[0].startswith("warning")
    assert problems(local("train.py", code), py_version="py310")[0].startswith("error")
    assert problems(local("train.py", code), py_version=None)[0].startswith("warning")


def test_a_shell_script_is_not_compiled(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("for x in\n")
    assert not problems(local("train.sh", tmp_path))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("./sub/train.py", "Give 'sub/train.py'."), ("my train.py", "Rename it."), ("tränen.py", "Rename it.")],
)
def test_a_name_that_every_container_refuses_is_refused(code: Path, name: str, remedy: str) -> None:
    (code / "sub").mkdir()
    (code / name).write_text("")
    (problem,) = problems(local(name, code))
    assert problem.startswith("error: entry_point: every container refuses it: The entry point")
    assert problem.endswith(remedy)
    elsewhere = SourceCode.of({"entry_point": name, "source_dir": "s3://b/code.tar.gz"})
    assert problems(elsewhere) == [problem]


def test_the_directory_of_a_script_alone_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "train.py").write_text("")
    assert not problems(local(str(tmp_path / "my code" / "train.py")))


def test_what_torchrun_can_not_start_in_its_ranks_is_refused(code: Path) -> None:
    (code / "train.sh").write_text("")
    shell = local("train.sh", code)
    assert problems(shell) == []
    (problem,) = problems(shell, launcher="torchrun")
    assert "torchrun starts one Python file in every rank, but train.sh is no Python file" in problem
    (code / "setup.py").write_text("")
    package = local("train.py", code)
    assert problems(package) == []
    (problem,) = problems(package, launcher="torchrun")
    assert problem.startswith(
        "error: distribution: torchrun starts one Python file in every rank, but train.py is part"
    )
    for other in ("mpirun", "mpirun, for SMDDP"):
        assert problems(shell, launcher=other) == problems(package, launcher=other) == []


def test_a_program_beside_a_setup_py_is_refused_for_it_would_be_started_as_a_module(code: Path) -> None:
    (code / "setup.py").write_text("")
    (code / "run").write_text("")
    (problem,) = problems(local("run", code))
    assert problem.startswith("error: entry_point: run is started as a module, by python -m, because of the setup.py")


@pytest.mark.parametrize("name", ["code.zip", "code.tar", "code.tar.xz"])
def test_an_archive_that_no_container_unpacks_is_refused(name: str) -> None:
    (problem,) = problems(SourceCode.of({"entry_point": "train.py", "source_dir": f"s3://b/{name}"}))
    assert f"s3://b/{name} is no .tar.gz" in problem


def test_a_file_that_hides_a_module_of_pythons_own_is_warned_of(code: Path) -> None:
    (code / "main.py").write_text("import os")
    (code / "turtle.py").touch()  # which no training imports
    assert not problems(local("main.py", code))
    (code / "random.py").touch()
    (code / "torch").mkdir()
    (code / "torch" / "__init__.py").touch()
    (problem,) = problems(local("main.py", code))
    assert problem.startswith("warning: source_dir: the script finds random.py, torch/ in place of the module of that")
    assert not problems(local(str(code / "main.py")))  # they are not uploaded
    (code / "smddp.py").write_text("import os")
    (problem,) = problems(local(str(code / "smddp.py")))
    assert problem.startswith("warning: entry_point: the script finds smddp.py in place of")


def test_modules_beside_a_script_that_is_uploaded_alone_are_warned_of(code: Path) -> None:
    (code / "data.py").write_text("")
    (code / "main.py").write_text(
        "import os, data.sets\nfrom layers import x\ntry:\n    import train\nexcept Exception: 0"
    )
    (problem,) = problems(local(str(code / "main.py")))
    assert "is uploaded alone, and imports data, layers, which lie beside it" in problem
    assert f"Give source_dir='{code}' and entry_point='main.py'" in problem
    assert not problems(local(str(code / "main.py"), None, code / "data.py", code / "layers"))
    assert not problems(local("main.py", code))


def test_modules_beside_a_script_are_an_error_if_this_python_runs_it_and_lacks_them(code: Path) -> None:
    (code / "main.py").write_text("import data")
    (code / "data.py").touch()
    (code / "pytest.py").touch()
    (problem,) = problems(local(str(code / "main.py")), runs_here=True)
    assert problem.startswith("error: entry_point: ") and "imports data, which lies beside it" in problem
    (code / "main.py").write_text("import pytest")  # installed, too: the job finds that one
    (problem,) = problems(local(str(code / "main.py")), runs_here=True)
    assert problem.startswith("warning: entry_point: ")


def test_a_directory_in_place_of_a_script_is_one_error(code: Path) -> None:
    assert problems(local(".", code)) == ["error: entry_point: '.' is a directory. Give the training script in it."]


def test_a_syntax_error_is_an_error_if_this_python_runs_the_script(code: Path) -> None:
    (code / "train.py").write_text("def main(:\n")
    (problem,) = problems(local("train.py", code))
    assert problem.startswith("warning: ")
    (problem,) = problems(local("train.py", code), runs_here=True)
    assert problem.startswith("error: ") and "which runs the job, can't compile it" in problem


def test_requirements_without_a_network_are_warned_of(code: Path) -> None:
    (problem,) = problems(local("train.py", code), isolated=True)
    assert problem.startswith("warning: enable_network_isolation")
    assert "safetensors" in problem


def test_a_script_that_spawns_ranks_below_a_launcher_is_warned_of(code: Path) -> None:
    (code / "train.py").write_text("import torch.multiprocessing as mp\n\nmp.spawn(print, nprocs=2)\n")
    (problem,) = problems(local("train.py", code), launcher="torchrun")
    assert problem.startswith(
        f"warning: distribution: {code}/train.py spawns ranks in line 3, and the distribution (to"
    )
    assert "in a job without distribution" in problem
    assert not problems(local("train.py", code))


def test_the_requirements_leave_out_what_images_have_and_the_command_line_needs() -> None:
    assert {requirement.name for requirement in source_code.package_requirements()} == {
        "numpy",
        "packaging",
        "safetensors",
        "xxhash",
    }


def test_for_local_mode_any_code_is_copied_with_its_dependencies(code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text("print('never heard of smddp')\n")
    library, single = tmp_path / "library", tmp_path / "single.py"
    library.mkdir()
    (library / "part.py").write_text("")
    single.write_text("")
    bundle = source_code.stage(local("train.py", code, library, single), into=tmp_path / "bundle")
    assert bundle.source.source_dir == str(tmp_path / "bundle")
    assert bundle.source.dependencies == ()
    copied = {path.relative_to(tmp_path / "bundle").as_posix() for path in (tmp_path / "bundle").rglob("*")}
    assert {"train.py", "library/part.py", "single.py"} <= copied
    assert "smddp" not in copied


def test_what_the_job_itself_makes_in_the_code_is_not_copied(code: Path, tmp_path: Path) -> None:
    """Also not the copy itself, which would hold itself without end."""
    (code / "checkpoints").mkdir()
    (code / "checkpoints" / "step").write_text("much")
    (code / "nowhere").symlink_to("removed")
    (code / "elsewhere").symlink_to(tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table").write_text("")
    (code / "job").mkdir()
    source_code.stage(local("train.py", code), into=code / "job" / "code", without=[code / "checkpoints"])
    copied = {path.name for path in (code / "job" / "code").iterdir()}
    assert {"train.py", "elsewhere"} <= copied
    assert not {"checkpoints", "job", "nowhere"} & copied
    assert (code / "job" / "code" / "elsewhere" / "table").exists()


def test_code_that_cannot_be_copied_says_which(code: Path, tmp_path: Path) -> None:
    (code / "circle").symlink_to(".")
    with pytest.raises(EstimatorError, match="circle leads to a directory that it lies in"):
        source_code.stage(local("train.py", code), into=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def bundled(source: SourceCode) -> set[str]:
    """The files of a bundle, without those of smddp."""
    bundle = source_code.stage(source)
    assert bundle.directory is not None
    names = {path.relative_to(bundle.directory).as_posix() for path in bundle.directory.rglob("*") if path.is_file()}
    bundle.remove()
    return {name for name in names if not name.startswith("smddp/")}


def test_what_smddpignore_names_stays_here(code: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for name in ("data/huge.bin", "data/labels.csv", "notes.txt", "layers/notes.txt"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("much")
    (code / ".smddpignore").write_text("# what the job reads from a channel\ndata/*\n!data/labels.csv\n/notes.txt\n")
    assert bundled(local("train.py", code)) == {
        *("train.py", "layers/__init__.py", "layers/notes.txt", "requirements.txt", "data/labels.csv"),
    }
    assert f"{code}/data/huge.bin" in caplog.text


def test_a_notebook_is_refused_with_the_command_that_makes_a_script_of_it(code: Path) -> None:
    (code / "train.ipynb").write_text("{}")
    (problem,) = problems(local("train.ipynb", code))
    script = code / "train.ipynb"
    remedy = f"Make a script of it first: jupyter nbconvert --to script {script}."
    assert problem == f"error: entry_point: {script} is a notebook. {remedy}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("this is not a requirement!!", "line 2: 'this is not a requirement!!' is no requirement: "),
        ("-r more.txt", "line 2: '-r more.txt' names more.txt, which is not in the code that is uploaded"),
        ("--constraint=more.txt  # pins", "names more.txt, which is not in"),
        ("./mypkg[all]; python_version > '3'", "names mypkg, which is not in"),
        ("-e ./mypkg", "names mypkg, which is not in"),
        ("wheels/a.whl", "names wheels/a.whl, which is not in"),
        ("-r there/more.txt", "more.txt, line 1: '-r absent.txt' names there/absent.txt, which is not in"),
    ],
)
def test_a_requirement_that_pip_will_refuse_is_an_error(code: Path, line: str, said: str) -> None:
    (code / "there").mkdir()
    (code / "there" / "more.txt").write_text("-r absent.txt\n")
    (code / "requirements.txt").write_text(f"einops\n{line}\n")
    (problem,) = problems(local("train.py", code))
    assert problem.startswith("error: source_dir: ")
    assert said in problem


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffeinops==0.8 \\\r\n    --hash=sha256:0a --config-settings='a/b'\r\n# no requirement !!\r\n",
        "-r there/more.txt\n-e .\n./there\n-e there[all]\n./more.whl\n",
        "git+https://example.invalid/x.git\n-e git+https://example.invalid/x.git#egg=x\nx @ https://example.invalid/x.whl\n",
        "--index-url https://example.invalid/simple\n--no-index\n-f wheels\n-r https://example.invalid/r.txt\n",
        "-r /opt/ml/r.txt\n/opt/ml/x.whl\n${INDEX}/x.whl\nfile:///opt/x.whl\n",
        "torch[opt] >= 2, < 3 ; python_version > '3'\n",
    ],
)
def test_requirements_that_pip_may_take_pass(code: Path, tmp_path: Path, text: str) -> None:
    (code / "there").mkdir()
    (code / "there" / "more.txt").write_text("einops\n")
    (tmp_path / "more.whl").touch()
    (code / "requirements.txt").write_bytes(text.encode())
    assert problems(local("train.py", code, tmp_path / "more.whl")) == []


@pytest.mark.parametrize(
    "line", ["torch==2.6.0", "Torch<2.8 --hash=sha256:0a", "torch @ https://example.invalid/t.whl"]
)
def test_a_requirement_that_replaces_pytorch_is_warned_of(code: Path, line: str) -> None:
    (code / "requirements.txt").write_text(f"{line}\n")
    (problem,) = problems(local("train.py", code), torch="2.8.0")
    assert problem.startswith("warning: source_dir: ")
    assert f"requirements.txt, line 1: by '{line}' pip replaces PyTorch 2.8.0" in problem
    assert problems(local("train.py", code)) == []  # nothing is known of what runs the job


@pytest.mark.parametrize(
    "line", ["torch", "torch>=2.4", "torch==2.8.*", "torch==1; python_version < '3'", "torch==${T}"]
)
def test_a_requirement_that_keeps_pytorch_passes(code: Path, line: str) -> None:
    (code / "requirements.txt").write_text(f"torchmetrics==1.0\n{line}\n")
    assert problems(local("train.py", code), torch="2.8.0+cu129") == []


def test_requirements_in_another_encoding_are_left_to_pip(code: Path) -> None:
    (code / "requirements.txt").write_bytes("einops !!".encode("utf-16"))
    assert problems(local("train.py", code)) == []


def test_code_that_is_large_for_code_is_told_with_its_largest_entries(code: Path) -> None:
    for name, megabytes in {"runs/train/checkpoints/a": 40, "runs/train/model/b": 20, "data.bin": 5}.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        with (code / name).open("wb") as file:
            file.truncate(megabytes * 10**6)
    (problem,) = problems(local("train.py", code))
    said = f"65 MB of code are uploaded; the largest in it: {code}/runs (60 MB), {code}/data.bin (5 MB), "
    assert problem.startswith(f"warning: source_dir: {said}")
    assert f"such as runs, in {code}/.smddpignore" in problem
    (code / ".smddpignore").write_text("runs\n")
    assert problems(local("train.py", code)) == []


def test_code_of_others_is_copied_only_if_something_stays_here(code: Path) -> None:
    (code / "train.py").write_text("print('never heard of smddp')\n")
    assert source_code.stage(local("train.py", code)).directory is None
    (code / ".git").mkdir()
    (code / ".git" / "config").write_text("")
    (code / "layers" / "__pycache__").mkdir()
    (code / "layers" / "__pycache__" / "layers.pyc").write_text("")
    assert bundled(local("train.py", code)) == {"train.py", "layers/__init__.py", "requirements.txt"}


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"


def test_what_looks_like_a_secret_stays_here_and_is_said(code: Path) -> None:
    secrets = (".env", "layers/.env.local", "id_rsa", ".aws/credentials", "server.pem", "store.p12")
    others = (".env.example", "authorities.pem", "id_rsa.pub", "environment.py")
    for name in (*secrets, *others):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("-----BEGIN CERTIFICATE-----" if name in others else KEY)
    assert bundled(local("train.py", code)) == {"train.py", "layers/__init__.py", "requirements.txt", *others}
    (problem,) = problems(local("train.py", code))
    assert problem.startswith("warning: source_dir: ")
    assert problem.count(str(code)) == len(secrets) + 1
    (code / ".smddpignore").write_text("!.env\nid_rsa\nserver.pem\n")
    left, let_through = problems(local("train.py", code))
    assert "id_rsa" not in left
    assert "server.pem" not in left
    assert let_through.startswith(f"warning: source_dir: uploaded, though it looks secret: {code}/.env. ")
    assert ".env" in bundled(local("train.py", code))


SECRET_FILES = [
    *("mykey", ".ssh-keys/deploy.txt", "id_ed25519_sk", "id_rsa_work", ".pgpass", ".envrc", ".vault-token"),
    *("credentials.json", "service-account.json", "conf/my_service_account_2.json", "terraform.tfstate", "store.jks"),
    *(".huggingface/token", ".cache/huggingface/token", ".config/gcloud/access_tokens.db", "putty.ppk", ".hg/hgrc"),
]
OTHER_FILES = [
    *("id_mapping.json", "tokenizer.json", "token", "id_ed25519.pub", "gcloud/train.py", "my_credentials.py"),
    *(".config/settings.json", "service_account.py", "scanner.py"),
]


def test_secrets_are_known_by_the_names_of_files_and_keys_by_what_is_in_them(code: Path) -> None:
    for name in (*SECRET_FILES, *OTHER_FILES):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text('HEADER = "-----BEGIN OPENSSH PRIVATE KEY-----"\n')
    for name in ("mykey", ".ssh-keys/deploy.txt"):
        (code / name).write_text(KEY)
    assert bundled(local("train.py", code)) == {"train.py", "layers/__init__.py", "requirements.txt", *OTHER_FILES}
    (problem,) = problems(local("train.py", code))
    assert problem.startswith("warning: source_dir: not uploaded, for it looks secret: ")


def test_the_dependencies_have_rules_of_their_own(code: Path, tmp_path: Path) -> None:
    library, script = tmp_path / "library", tmp_path / "tool.py"
    (library / "tests").mkdir(parents=True)
    for name in ("part.py", "tests/test_part.py", ".env"):
        (library / name).write_text("")
    (library / ".smddpignore").write_text("tests/\n")
    script.write_text("")
    source = local("train.py", code, library, script)
    assert bundled(source) >= {"library/part.py", "tool.py"}
    assert not {"library/tests/test_part.py", "library/.env", "library/.smddpignore"} & bundled(source)
    assert [problem.partition(": ")[2].partition(":")[0] for problem in problems(source)] == ["dependencies"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"data/\n!\n", "Invalid git pattern: '!'"),
        (b"\xff\xfe", "can't be read"),
        (b"*.py\n", "train.py is not uploaded"),
        (b"[[:digit:]]*\n", "'[[:digit:]]*' has a class of characters such as [:digit:]"),
    ],
)
def test_a_smddpignore_that_cannot_be_meant_is_refused(code: Path, content: bytes, said: str) -> None:
    (code / ".smddpignore").write_bytes(content)
    (problem,) = problems(local("train.py", code))
    assert problem.startswith("error")
    assert said in problem


def test_links_are_followed_and_secrets_behind_them_found(code: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("part.py", ".env", "id_rsa"):
        (shared / name).write_text("")
    (code / "main.py").symlink_to("train.py")
    (code / "shared").symlink_to("../shared")
    (code / "settings").symlink_to("../shared/.env")
    (code / ".#train.py").symlink_to("somebody@somewhere.1:2")  # Emacs' lock
    assert bundled(local("main.py", code)) == {
        *("main.py", "train.py", "layers/__init__.py", "requirements.txt", "shared/part.py"),
    }
    left, followed = problems(local("main.py", code))
    assert all(f"{code}/{name}" in left for name in ("shared/.env", "shared/id_rsa", "settings"))
    link = f"{code}/shared → {tmp_path}/shared"
    assert followed.startswith(f"warning: source_dir: uploaded, though the link leads out of {code}: {link}. ")
    (code / ".smddpignore").write_text("shared\n")
    assert not any("leads out" in problem for problem in problems(local("main.py", code)))


def test_a_link_without_its_target_is_told_unless_it_is_ignored(code: Path) -> None:
    (code / "weights.pt").symlink_to("/removed/weights.pt")
    assert "weights.pt" not in bundled(local("train.py", code))
    (told,) = problems(local("train.py", code))
    link = f"{code}/weights.pt → /removed/weights.pt"
    assert told.startswith(f"warning: source_dir: not uploaded, for the target of the link is absent: {link}. Restore")
    (code / ".smddpignore").write_text("*.pt\n")
    assert problems(local("train.py", code)) == []


def test_a_copy_has_the_empty_directories(code: Path, tmp_path: Path) -> None:
    (code / "logs" / "events").mkdir(parents=True)
    (tmp_path / "job").mkdir()
    bundle = source_code.stage(local("train.py", code), into=tmp_path / "job" / "bundle")
    assert bundle.directory is not None
    assert (bundle.directory / "logs" / "events").is_dir()


def test_what_is_no_file_stays_here(code: Path) -> None:
    os.mkfifo(code / "pipe.key")
    assert "pipe.key" not in bundled(local("train.py", code))


def test_no_wildcard_lets_a_secret_through(code: Path) -> None:
    (code / "deep" / ".aws").mkdir(parents=True)
    for name in ("deep/.env", "deep/.aws/credentials", "deep/chain.PEM", "deep/a.py"):
        (code / name).write_text("-----BEGIN CERTIFICATE-----\n" * 500 + KEY if name.endswith("PEM") else "")
    (code / ".smddpignore").write_text("deep/*\n!deep/\n!deep/**\n")
    assert {name for name in bundled(local("train.py", code)) if name.startswith("deep")} == {"deep/a.py"}
    (problem,) = problems(local("train.py", code))
    assert all(name in problem for name in ("deep/.env", "deep/.aws/", "deep/chain.PEM"))


@pytest.mark.parametrize(
    ("named", "place"), [("library", "library/part.py"), ("library/", "part.py"), ("library/.", "part.py")]
)
def test_a_dependency_lies_where_the_sdk_puts_it(
    code: Path, tmp_path: Path, named: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "part.py").write_text("")
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(code), "dependencies": [named]})
    assert place in bundled(source)


def test_a_dependency_without_a_name_is_refused(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(code), "dependencies": [".."]})
    assert problems(source) == [f"error: dependencies: .. has no name to be bundled by. Give {tmp_path}."]


def test_what_a_dependency_asks_for_is_kept_beside_what_smddp_needs(code: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "requirements.txt").write_text("timm\n")
    bundle = source_code.stage(local("train.py", code, tmp_path / "more" / "requirements.txt"))
    assert bundle.directory is not None
    lines = (bundle.directory / "requirements.txt").read_text().splitlines()
    assert "timm" in lines
    assert any(line.startswith("xxhash") for line in lines)
    bundle.remove()


def test_ignored_code_decides_nothing(code: Path) -> None:
    (code / "old").mkdir()
    (code / "old" / "train.py").write_text(SCRIPT)
    (code / "train.py").write_text("")
    (code / ".smddpignore").write_text("\ufeffold/\r\nsmddp/\r\n")
    assert not source_code.needs_package(local("train.py", code))
    (code / "train.py").write_text(SCRIPT)
    (code / "smddp").mkdir()
    (code / "smddp" / "__init__.py").write_text("")
    assert source_code.needs_package(local("train.py", code))


NAMES = st.sampled_from(["a", "b", "c.py", "d.txt", "a b", "!a", "a*"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
PARTS = st.sampled_from(["a", "b", "c.py", "*", "*.py", "?", "**", "[ab]", "a*", r"a\ b", r"\!a", r"a\*", "[^b]"])
LINES = st.builds(
    lambda negated, rooted, parts, ending: f"{negated}{rooted}{'/'.join(parts)}{ending}",
    st.sampled_from(["", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=2),
    st.sampled_from(["", "/"]),
)


def test_what_is_escaped_in_the_last_part_of_a_line_is_the_name_itself(tmp_path: Path) -> None:
    for name in ("a b", "c*", "cd", "!e", "f ", "g"):
        (tmp_path / name).write_text("")
    (tmp_path / ".smddpignore").write_text("/**/a\\ b\n**/c\\*\n/**/\\!e\n/**/f\\ \n")
    assert set(Tree.of(tmp_path).files) == {"cd", "g"}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(paths=st.lists(PATHS, min_size=1, max_size=8), lines=st.lists(LINES, max_size=4))
@example(paths=["a/c.py", "a/d.txt"], lines=["*", "!*/", "!*.py"])
@example(paths=["a/b/c.py"], lines=["a/", "!a/b/c.py"])
@example(paths=["a/b"], lines=["a/**", "!a/b"])
@example(paths=["a b", "a/a b", "a"], lines=[r"/**/a\ b"])
@pytest.mark.slow
def test_a_smddpignore_means_what_it_means_to_git(
    paths: list[str], lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for path in paths:
        with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("")
    (root / ".smddpignore").write_text("\n".join(lines))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    listed = ["git", "ls-files", "--others", "-z", "--exclude-from=.smddpignore"]
    by_git = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    assert set(Tree.of(root).files) == set(by_git) - {"", ".smddpignore"}


def test_a_script_is_parsed_once_for_all_checks(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "alone.py").write_text("import layers, smddp\n\nsmddp.run(main)\n")
    parsed: list[Path] = []
    read = PythonModule.read

    def counted(path: Path) -> PythonModule:
        parsed.append(path)
        return read(path)

    monkeypatch.setattr(PythonModule, "read", counted)
    source = SourceCode.of({"entry_point": str(code / "alone.py")})
    assert list(source_code.check(source, py_version=None, isolated=False, runs_here=True))
    assert source_code.calls_package(source, {"smddp.run"})
    assert parsed == [code / "alone.py"]
