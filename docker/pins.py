"""``pins.py CONSTRAINTS``: where a package is installed already, its own version takes the place of the tested one.

Runs while an image is built, on the base's Python and with nothing but it. Without this, the pin on torch would
replace the base's own, and with it the CUDA that it was built for.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

file = Path(sys.argv[1])


def canonical(name: str) -> str:
    """Return a name as pip compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


installed = {canonical(each.metadata["Name"]): each.version for each in distributions() if each.metadata["Name"]}
lines = []
for line in file.read_text().splitlines():
    name = line.partition("==")[0]
    version = installed.get(canonical(name))
    lines.append(f"{name}=={version}" if version else line)
file.write_text("\n".join(lines) + "\n")
