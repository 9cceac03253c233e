"""docs/how-to/notebook.md in a real kernel: its blocks are the cells of one notebook, and show what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "notebook.md").read_text()
_NUMBER = re.compile(r"(?<==)[0-9.e+-]+(?![0-9.e+-]*/)")


def cells() -> list[str]:
    """The page's blocks, then a cell for each last line that its table names."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [*(re.sub(r"\A# (\w+\.py)$", r"%%writefile \1", block, flags=re.MULTILINE) for block in blocks), *shown()]


def shown() -> list[str]:
    """The calls in the first column of the page's table."""
    return [call for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for call in re.findall(r"`(.*?)`", row)]


def executed(directory: Path) -> list[list[Any]]:
    """The outputs of each cell, and of one that fails."""
    failing = nbformat.v4.new_code_cell("undefined", metadata={"tags": ["raises-exception"]})
    made = [*(nbformat.v4.new_code_cell(cell) for cell in cells()), failing]
    notebook = nbformat.v4.new_notebook(cells=made)
    manager = KernelManager(
        transport="ipc", ip=str(directory / "kernel"), connection_file=str(directory / "kernel.json")
    )
    NotebookClient(notebook, km=manager, timeout=200, resources={"metadata": {"path": str(directory)}}).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.usefixtures("fork_python")
def test_the_first_cell_run_again_resumes_and_says_so(tmp_path: Path) -> None:
    cell = cells()[0].replace("tempfile.mkdtemp()", repr(str(tmp_path)))
    program = f"import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n{cell}\n{cell}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    (said,) = re.findall(r"prints `(resumed .*?)`", PAGE)
    assert done.stdout.splitlines()[2:] == [said]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_cell_shows_what_the_page_says(tmp_path: Path) -> None:
    trained, _, fitted, *last_lines, failed = executed(tmp_path)
    printed = "".join(output.text for output in trained if output.output_type == "stream")
    (said,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert _NUMBER.sub("#", printed) == _NUMBER.sub("#", said)

    assert not [output.text for output in fitted if output.get("name") == "stderr"]
    lines = [output.data["text/plain"] for output in fitted if output.output_type == "display_data"]
    assert [line.split()[0] for line in lines] == ["Completed"], "one line, which is kept up to date"
    assert [output.output_type for output in failed] == ["error"], "IPython's own traceback, not the SDK's box"
    assert "image/png" in fitted[-1].data

    assert shown(), "the page has no table of what is shown"
    for call, outputs in zip(shown(), last_lines, strict=True):
        (output,) = outputs
        wanted = "image/png" if "plot" in call else "text/html"
        assert wanted in output.data, call
        assert wanted != "text/html" or "<table" in output.data[wanted], call
