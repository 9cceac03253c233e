"""What is wrong with data that is read in sequence."""

from __future__ import annotations

from smddp.errors import SmddpError


class DataError(SmddpError, ValueError):
    """Training data is missing, damaged, not readable, or not what it was when it was indexed."""
