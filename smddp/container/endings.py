"""How ranks ended, in their own words: AWS's toolkit and launchers turn any exit code of theirs but 0 into 1.

``smddp.container.init`` names a directory in the environment of what it starts; a rank that ends well through
``smddp.run``, with 0 or 75, leaves its exit code there. Whoever leaves no word did not end well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from smddp.stopping import RESUMABLE

ENDINGS_VARIABLE = "SMDDP_ENDINGS"
"""Names the directory; unset where nobody asks."""


def leave_word(code: int, environ: Mapping[str, str]) -> None:
    """Tell that this process is about to end with this exit code."""
    directory = environ.get(ENDINGS_VARIABLE)
    if directory and os.path.isdir(directory):  # noqa: PTH112, this must start fast: no pathlib
        with open(f"{directory}/{os.getpid()}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(code))


def all_resumable(directory: str, expected: Iterable[int]) -> bool:
    """Whether processes left a word there, every one of them "resumable", and these among them."""
    words = {}
    for process in os.listdir(directory):  # noqa: PTH208
        with open(f"{directory}/{process}", encoding="ascii") as file:  # noqa: PTH123
            words[int(process)] = file.read()
    return bool(words) and set(words.values()) == {str(RESUMABLE)} and words.keys() >= set(expected)
