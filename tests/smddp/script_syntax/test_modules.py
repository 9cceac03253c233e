"""A script's modules are found as its script imports them, and each is parsed once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from smddp.script_syntax import Modules

FILES = {
    "train.py": "import torch, helpers.data\nfrom models import Net\nfrom extra import more\nimport lib\n",
    "helpers/__init__.py": "",
    "helpers/data.py": "from . import text\nfrom ..train import x\n",
    "helpers/text.py": "def f():\n    import late\n",
    "models.py": "from helpers.data import Net as Base\nNet = Base\n",
    "late.py": "import train\n",
    "unused.py": "",
}


@pytest.fixture
def modules(tmp_path: Path) -> Modules:
    for name, text in FILES.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "extra.py").write_text("")
    named = {"lib": tmp_path / "lib", "extra": tmp_path / "extra.py"}
    return Modules(path=tmp_path / "code" / "train.py", directories=[tmp_path / "code"], named=named)


def test_the_reached_modules_are_those_of_the_bundle(modules: Modules, tmp_path: Path) -> None:
    found = {str(module.path.relative_to(tmp_path)) for module in modules.reached}
    code = {f"code/{name}" for name in FILES} - {"code/unused.py"}
    assert found == code | {"lib/__init__.py", "extra.py"}


def test_each_file_is_parsed_once(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    original = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, **options: parsed.append(options["filename"]) or original(text))
    for _ in range(2):
        assert modules.reached
        assert all(modules.module(each.path) is each for each in modules.reached)
    assert len(parsed) == len(set(parsed)) == len(modules.reached)


def test_a_name_is_followed_to_its_statement(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "code" / "helpers" / "data.py").write_text("class Net: ...\n")
    script = modules.script
    module, statement = modules.definition(script, ast.Name(id="Net")) or (script, None)
    assert module.path.name == "models.py"
    assert isinstance(statement, ast.Assign)
    module, statement = modules.definition(module, statement.value) or (script, None)
    assert module.path.name == "data.py"
    assert isinstance(statement, ast.ClassDef)
    assert modules.definition(script, ast.Name(id="torch")) is None


def test_names_that_import_each_other_end(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "code" / "models.py").write_text("from late import Net\n")
    (tmp_path / "code" / "late.py").write_text("from models import Net\n")
    assert modules.definition(modules.script, ast.Name(id="Net")) is None


def test_of_a_large_library_the_rest_counts_as_outside(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smddp.script_syntax.modules._MOST_READ", 3)
    assert len(modules.reached) == 3


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\nif x == 0: pass\n" + "elif x == 1: pass\n" * 9000,
        "x = " + "+".join(["y"] * 20_000),
        f"x = {'-' * 20_000}1",
    ],
    ids=["branches", "sum", "signs"],
)
def test_a_script_too_deep_for_python_is_a_fault_of_the_script(modules: Modules, text: str) -> None:
    modules.path.write_text(text)
    assert "nests too deeply: split" in str(modules.script.syntax_fault)


def test_a_long_chain_of_branches_is_no_fault(modules: Modules) -> None:
    modules.path.write_text("x = 1\nif x == 0: pass\n" + "elif x == 1: pass\n" * 1500)
    assert modules.script.syntax_fault is None
    assert modules.script.binding("x") is not None
