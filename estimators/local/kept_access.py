"""A platform's addresses and keys, kept beside its objects on disk, so that the next platform there has the same.

The keys allow running code as the platform's user, so the file is read only if nobody else can have written it.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from estimators.local.access import Access, answers
from estimators.local.api.signature import KeyPair
from estimators.local.errors import LocalPlatformError
from estimators.local.private_directory import is_locked, require_private

logger = logging.getLogger(__name__)

_FILE = "access.json"


class KeptAccess:
    """The access file of a platform, and the directory of the files that a client needs."""

    def __init__(self, platform: Path) -> None:
        """Point at the access files in a platform's directory; nothing is read or made yet."""
        self.directory = platform / "access"

    def read(self) -> Access | None:
        """Return the addresses and keys of the platform that runs or last ran here; None if no platform ever ran here.

        Raise LocalPlatformError if another user could have written the file, or it is malformed.
        """
        path = self.directory / _FILE
        try:
            for each in (self.directory, path):
                require_private(each)
            fields = json.loads(path.read_text())
            return Access(**{**fields, "keys": KeyPair(**fields["keys"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = error if isinstance(error, OSError | ValueError) else "it holds no addresses and keys of a platform"
            raise LocalPlatformError(f"{path} can't be read: {why}. Remove it: new keys are made then.") from error

    def read_running(self) -> Access | None:
        """Return the addresses and keys of the platform that runs here now; None if none does. Raise as `read` does.

        An answer alone is not proof, because another user's program could give it: the objects must be locked, too.
        """
        access = self.read()
        runs = access is not None and is_locked(self.directory.parent / "storage") and answers(access)
        return access if runs else None

    def require_running(self) -> Access:
        """Return the addresses and keys of the platform that runs here now; raise LocalPlatformError if none does."""
        access = self.read_running()
        if access is None:
            platform = self.directory.parent
            quoted = shlex.quote(str(platform))
            raise LocalPlatformError(
                f"no platform runs on {platform}: start one with smddp local up --directory {quoted}"
            )
        return access

    def write(self, access: Access) -> None:
        """Replace the access file in one step; only this user can read it."""
        partial = self.directory / f"{_FILE}.{os.getpid()}"
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(access)))
        partial.replace(self.directory / _FILE)

    def make(self) -> None:
        """Make the directory; raise LocalPlatformError if an existing one is not this user's alone."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        require_private(self.directory)


def port_again(endpoint_url: str) -> int:
    """Return the port of an endpoint if it is free on 127.0.0.1; else warn, and return 0, which means any port."""
    port = urlsplit(endpoint_url).port or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: old connections may linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            logger.warning(
                "another program listens on port %d now, where this platform was: shells that were told so must be "
                "told anew, by smddp local env",
                port,
            )
            return 0
    return port
