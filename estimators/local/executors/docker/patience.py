"""How long Docker may take to do one thing: under load it needs seconds, and one that hangs for ever."""

from __future__ import annotations

SECONDS = 30.0
