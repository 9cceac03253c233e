"""A module is found where ``python -m`` finds it, and nothing is imported for that."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from smddp.script_syntax import find_entry_point

FILES = {
    "train.py": "",
    "jobs/__init__.py": "raise ImportError('it was imported')\n",
    "jobs/__main__.py": "",
    "jobs/train.py": "",
    "jobs/inner/__init__.py": "",
    "jobs/inner/train.py": "",
    "plain/train.py": "",
    "plain/deep/train.py": "",
    "library/installed/__init__.py": "",
    "library/installed/train.py": "",
    "library/plain/other.py": "",
    "elsewhere/editable/__init__.py": "",
    "elsewhere/editable/train.py": "",
    "elsewhere/part/__init__.py": "",
    "elsewhere/part/train.py": "",
}


def test_a_notebook_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text("{}")
    found = find_entry_point(tmp_path / "train.ipynb")
    command = f"jupyter nbconvert --to script {found.path}"
    assert found.missing == f"{found.path} is a notebook. Make a script of it first: {command}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; beside it are a directory of ``sys.path``, and one that only a finder knows."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "library")

    class Editable:
        """A finder as setuptools installs for a package that stays where it is: it looks at no path."""

        @classmethod
        def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if name == "spread":
                return ModuleSpec(name, None, is_package=True)  # a namespace: only the finder knows what is in it
            known = {"editable": "editable", "spread.part": "part"}
            return PathFinder.find_spec(known[name], [str(tmp_path / "elsewhere")]) if name in known else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    return tmp_path


@pytest.mark.parametrize(
    ("module", "file", "packages"),
    [
        ("train", "train.py", []),
        ("jobs", "jobs/__main__.py", ["jobs"]),
        ("jobs.__main__", "jobs/__main__.py", ["jobs"]),
        ("jobs.train", "jobs/train.py", ["jobs"]),
        ("jobs.inner.train", "jobs/inner/train.py", ["jobs", "jobs/inner"]),
        ("plain.train", "plain/train.py", []),
        ("plain.deep.train", "plain/deep/train.py", []),
        ("plain.other", "library/plain/other.py", []),
        ("installed.train", "library/installed/train.py", ["library/installed"]),
        ("editable.train", "elsewhere/editable/train.py", ["elsewhere/editable"]),
        ("spread.part.train", "elsewhere/part/train.py", ["elsewhere/part"]),
    ],
)
def test_a_module_is_found_without_an_import(project: Path, module: str, file: str, packages: list[str]) -> None:
    imported = set(sys.modules)
    found = find_entry_point(module, module=True)
    assert (found.missing, found.words, found.name) == ("", ("-m", module), module)
    assert found.path == project / file
    assert found.modules.packages == [project / each / "__init__.py" for each in packages]
    assert found.modules.directories == [project]
    assert not {each.partition(".")[0] for each in set(sys.modules) - imported} & {module.partition(".")[0]}


def test_the_modules_of_an_installed_package_are_its_own(project: Path) -> None:
    text = "from installed import data\nfrom . import more\nimport torch\n"
    for name, content in (("train.py", text), ("data.py", ""), ("more.py", "")):
        (project / "library" / "installed" / name).write_text(content)
    reached = find_entry_point("installed.train", module=True).modules.reached
    assert {each.path.name for each in reached} == {"__init__.py", "train.py", "data.py", "more.py"}


@pytest.mark.parametrize(
    ("given", "module", "said"),
    [
        ("jobs.trian", True, "There is no module jobs.trian. Did you mean jobs.train?"),
        ("jbos.train", True, "There is no module jbos.train. Did you mean jobs.train?"),
        ("jobs.evaluate", True, "There is no module jobs.evaluate: 'evaluate' is not in {}/jobs."),
        ("absent.train", True, "There is no module absent.train: 'absent' is not in {}, and it is not installed."),
        (".train", True, "-m takes the name of a module, such as jobs.train, and '.train' is none."),
        ("jobs.train.", True, "-m takes the name of a module, such as jobs.train, and 'jobs.train.' is none."),
        ("jobs/train", True, "-m takes the name of a module, such as jobs.train, and 'jobs/train' is none."),
        ("", True, "-m takes the name of a module, such as jobs.train, and '' is none."),
        ("train.main", True, "There is no module train.main: train is a module, and no package."),
        (
            "jobs.train.py",
            True,
            "There is no module jobs.train.py: jobs.train is a module, and no package. Did you mean jobs.train?",
        ),
        ("train.py", True, "train.py is a file, and -m takes the name of a module: leave -m out."),
        ("jobs/train.py", True, "jobs/train.py is a file, and -m takes the name of a module: leave -m out."),
        (
            "plain",
            True,
            "plain is a package without the module __main__, which -m would run: give one of its modules, such as "
            "other, train.",
        ),
        ("jobs.train", False, "There is no script jobs.train. Did you mean -m jobs.train?"),
        ("jobs", False, "There is no script jobs. Did you mean -m jobs?"),
        ("plain", False, "plain is a directory: give the path of the script itself."),
        ("train", False, "There is no script train. Did you mean train.py?"),
    ],
)
def test_what_no_run_would_find_is_told_with_the_nearest(project: Path, given: str, module: bool, said: str) -> None:
    assert find_entry_point(given, module=module).missing == said.format(project)


@pytest.mark.parametrize(
    "text",
    [
        "__path__.append('elsewhere')\n",
        "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n",
        "from . import finder\n",
    ],
)
def test_a_package_that_says_itself_where_its_modules_are_is_left_to_the_ranks(project: Path, text: str) -> None:
    (project / "jobs" / "__init__.py").write_text(text)
    (project / "jobs" / "finder.py").write_text("import sys\nsys.meta_path.append(None)\n")
    found = find_entry_point("jobs.late", module=True)
    assert (found.missing, found.path) == ("", project / "jobs" / "late.py")


@pytest.mark.parametrize(
    "module", ["jobs.train", "plain.deep.train", "absent.train", "jobs.absent", "plain", "plain.no"]
)
def test_python_finds_what_is_found_here(project: Path, module: str) -> None:
    (project / "jobs" / "__init__.py").write_text("")
    ended = subprocess.run([sys.executable, "-m", module], cwd=project, capture_output=True, check=False)
    assert (ended.returncode == 0) == (find_entry_point(module, module=True).missing == "")


def test_a_script_is_not_taken_for_a_module_of_python(project: Path) -> None:
    assert find_entry_point("profile").missing == f"There is no script profile (looked in {project})."


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons do not read PYTHONSAFEPATH")
def test_the_working_directory_is_not_searched_where_python_does_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert find_entry_point("jobs.train", module=True).missing == (
        f"There is no module jobs.train: it is not installed, and PYTHONSAFEPATH keeps Python from {project}."
    )
    assert find_entry_point("installed.train", module=True).missing == ""
