"""How a platform on disk is reached, kept beside its objects: the next one there has the same addresses and keys.

Whoever knows the keys runs code as the platform's user. What lies here is read only if nobody else can have written it.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from estimators.local.access import Access
from estimators.local.api.signature import KeyPair
from estimators.local.errors import LocalPlatformError

_FILE = "access.json"


class KeptAccess:
    """The file, and the directory for all that a client needs."""

    def __init__(self, platform: Path) -> None:
        """Nothing is read or made yet.

        Args:
            platform: The directory that the platform was given.
        """
        self.directory = platform / "access"

    def read(self) -> Access | None:
        """How the platform here is reached, or was when it ran last; None if none ever ran.

        Raises:
            LocalPlatformError: Somebody else could have written it, or it is no such file.
        """
        path = self.directory / _FILE
        try:
            self._require_own()
            fields = json.loads(path.read_text())
            return Access(**{**fields, "keys": KeyPair(**fields["keys"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LocalPlatformError(f"{path} can't be read: {error}. Remove it: new keys are made then.") from error

    def write(self, access: Access) -> None:
        """Keep it, readable by this user alone."""
        partial = self.directory / f"{_FILE}.{os.getpid()}"
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(access)))
        partial.replace(self.directory / _FILE)

    def make(self) -> None:
        """Make the directory, or see that the one that is there is this user's alone.

        Raises:
            LocalPlatformError: It is not.
        """
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self._require_own()

    def _require_own(self) -> None:
        for path in (self.directory, self.directory / _FILE):
            try:
                status = path.lstat()
            except FileNotFoundError:
                if path == self.directory:
                    raise
                continue
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077 or stat.S_ISLNK(status.st_mode):
                raise LocalPlatformError(
                    f"{path} must be yours, and nobody else's to read or write, for keys are in it. Remove it, or "
                    "choose another directory."
                )


def free_port_of(endpoint_url: str) -> int:
    """The port of an address on this machine if it can be had again, else 0, which stands for any."""
    port = urlsplit(endpoint_url).port or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: its old connections may linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
