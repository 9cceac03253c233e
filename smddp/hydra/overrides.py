"""Convert a job's hyperparameters to overrides in Hydra's own grammar, without loss.

A text is quoted, so that Hydra does not read it as a number, list or sweep, and its ``${`` is escaped, so that it is no
interpolation. Hydra's own parser reads each override back, and a value that the grammar can't express is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from smddp.errors import HyperparameterError

_NAME = re.compile(r"(\+{0,2})([^+~=]+)")
_BEFORE_INTERPOLATION = re.compile(r"(\\*)\$\{")


def to_overrides(hyperparameters: Mapping[str, Any]) -> list[str]:
    r"""Return these hyperparameters as overrides of Hydra's command line.

    Args:
        hyperparameters: JSON values by name. A name is a key with dots (``model.depth``), a config group
            (``optimizer``, ``db@backup``), or one of these after ``+`` or ``++``, as Hydra writes them.

    Raises:
        HyperparameterError: Hydra would read a value as something else; the message has the name, not the value.

    Examples:
        >>> to_overrides({"lr": 0.1, "model.depth": 3, "optimizer": "adam", "note": "${x}", "seeds": [1, None]})
        ['lr=0.1', 'model.depth=3', "optimizer='adam'", "note='\\${x}'", 'seeds=[1,null]']
    """
    return [_override(name, value) for name, value in hyperparameters.items()]


def _override(name: str, value: Any) -> str:
    override = f"{name}={_element(value)}"
    if not _reads_as(override, name, value):
        raise HyperparameterError(
            f"The hyperparameter {name!r} can't be given to Hydra as it is. A name is a key with dots or a config "
            "group; keys of a dict are words that are no number and no true, false or null; the text ??? means a "
            "missing value."
        )
    return override


def _element(value: Any) -> str:
    if isinstance(value, str):
        return str(QuotedString(_escape(value), Quote.single).with_quotes())
    if isinstance(value, list):
        return f"[{','.join(_element(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_element(item)}" for key, item in value.items()) + "}"
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def _escape(text: str) -> str:
    """Return a text that OmegaConf reads as the given one: escape each ``${``, and double the backslashes before it."""
    return _BEFORE_INTERPOLATION.sub(lambda found: found[1] * 2 + r"\${", text)


def _reads_as(override: str, name: str, value: Any) -> bool:
    """Return whether Hydra reads this name and value from the override."""
    given = _NAME.fullmatch(name)
    if given is None:
        return False
    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override():
            return False
        read = OmegaConf.to_container(OmegaConf.create({"value": parsed.value()}), resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException):
        return False
    assert isinstance(read, dict)
    package = "" if parsed.package is None else f"@{parsed.package}"
    return parsed.key_or_group + package == given[2] and repr(read["value"]) == repr(value)
