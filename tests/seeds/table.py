"""The tables of docs/explanation/articles.md: ``python -m tests.seeds.table`` runs the programs and writes them.

What they printed is kept in ``results.json``; the tests run them again and compare.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.fork_python import ForkPython
from tests.seeds.programs import PROGRAMS, Program
from tests.seeds.running import Result, run_document

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "articles.md"
RESULTS = Path(__file__).parent / "results.json"

_BEGIN = "<!-- made by `python -m tests.seeds.table` from what the programs printed: begin -->\n"
_END = "<!-- end -->\n"


def read_results() -> dict[str, dict[str, Result]]:
    """What the programs printed when the page was made, by document and program."""
    results: dict[str, dict[str, Result]] = json.loads(RESULTS.read_text())
    return results


def render(results: dict[str, dict[str, Result]]) -> str:
    """A table for each document."""
    lines = []
    for document, programs in PROGRAMS.items():
        lines += [f"### {document}", "", "| program | here | result | what differs, and why |", "|---|---|---|---|"]
        lines += [_row(program, results[document][program.program]) for program in programs]
        lines.append("")
    return "\n".join(lines)


def in_page() -> str:
    """The tables that the page shows."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]


def write() -> None:
    """Run all programs, keep their results, and put the tables into the page."""
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        python = ForkPython(Path(directory) / "python")
        with python.in_use():
            for number, document in enumerate(PROGRAMS):
                (place := Path(directory) / str(number)).mkdir()
                results[document] = run_document(document, place)
        python.close()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{render(results)}{_END}{rest.partition(_END)[2]}")


def _row(program: Program, result: Result) -> str:
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result.items())
    command = program.command.replace("|", "\\|")
    return f"| {program.program} | `{command}` | {shown} | {program.differs} |"


if __name__ == "__main__":
    write()
