"""Archives with anything in them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def archive(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    """A .tar.gz of members: a name, and TarInfo's fields beside ``data``."""
    with tarfile.open(path, "w:gz") as tar:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            data = fields.pop("data", b"")
            assert isinstance(data, bytes)
            info.size = len(data)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return path
