"""One rank's config: composed by Hydra from files and overrides, compared with the other ranks', saved with the run.

A job's hyperparameters become overrides in Hydra's own grammar, without loss. A text is quoted, so that Hydra does not
read it as a number, list or sweep, and its ``${`` is escaped, so that Hydra does not interpolate. Hydra's own parser
reads each override back, and a value that the grammar can't express is refused.

Hydra's own runner is not used: on each rank it would create a directory with the time in its name, set up logging
again, and end a failed rank by ``sys.exit(1)``. Settings of that runner in a config are refused, not ignored.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from smddp.distributed import Membership
from smddp.errors import HyperparameterError
from smddp.job import Job

logger = logging.getLogger(__name__)

ONE_RUN = (
    "a job trains one config: give --multirun's values to as many jobs (a loop over Estimator.fit(wait=False), or a "
    "tuning job), or as a list, x=[1,2]"
)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFiles:
    """The location of a script's config."""

    path: str | None
    """An absolute directory, or ``pkg://`` and a package; None without files."""
    name: str | None
    """The primary config, without ``.yaml``."""
    version_base: str | None
    """The Hydra version whose defaults apply."""

    def initialize(self, script_name: str) -> AbstractContextManager[None]:
        """Let Hydra search for config files here while the context lasts."""
        if self.path is None:
            return hydra.initialize(config_path=None, job_name=script_name, version_base=self.version_base)
        if self.path.startswith("pkg://"):
            package = self.path.removeprefix("pkg://")
            return hydra.initialize_config_module(package, job_name=script_name, version_base=self.version_base)
        return hydra.initialize_config_dir(self.path, job_name=script_name, version_base=self.version_base)


def compose_config(files: ConfigFiles, overrides: Sequence[str], job: Job, script_name: str) -> DictConfig:
    """Compose the config, with Hydra's own part, and register it for ``HydraConfig`` and ``${hydra:...}``.

    Hydra's output directory is ``job.output_data_dir``. Raise HyperparameterError if Hydra can't compose the config, or
    it asks for something that a job does not do; the message contains no values of overrides.
    """
    try:
        with files.initialize(script_name):
            config = hydra.compose(files.name, list(overrides), return_hydra_config=True)
        _check(config)
        with read_write(config), open_dict(config):
            config.hydra.runtime.output_dir = str(job.output_data_dir.absolute())
        HydraConfig.instance().set_config(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise HyperparameterError(f"Hydra can't compose the config. {_without_values(str(error), overrides)}") from None
    return config


def own_part(config: DictConfig) -> DictConfig:
    """Return the config without Hydra's part, as Hydra passes it to a script."""
    own = config.copy()
    with read_write(own), open_dict(own):
        del own["hydra"]
    assert isinstance(own, DictConfig)
    return own


def recorded_values(config: DictConfig) -> dict[str, Any]:
    """Return the config as JSON values, with interpolations unresolved: ``${oc.env:TOKEN}`` reveals no secret."""
    values = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return dict(json.loads(json.dumps(values, default=str)))


def agree(config: DictConfig, membership: Membership) -> None:
    """Let ``${now:...}`` be rank 0's time on all ranks.

    Raise HyperparameterError on every rank if one has composed another config.
    """
    own = OmegaConf.to_yaml(config)
    ranks = membership.ranks.gather(lambda: (own, time.time()))
    for rank, (text, _) in enumerate(ranks):
        if text != ranks[0][0]:
            raise HyperparameterError(
                f"Rank {rank} has composed another config than rank 0: see that all hosts have the same config files "
                "and hyperparameters."
            )
    begun = datetime.fromtimestamp(ranks[0][1])
    OmegaConf.register_new_resolver("now", lambda pattern: begun.strftime(pattern), use_cache=True, replace=True)
    OmegaConf.clear_cache(config)  # earlier results of ${now:...}


def write_files(config: DictConfig) -> None:
    """Write config, overrides and Hydra's own part to ``.hydra`` in the output directory, as Hydra does."""
    output_dir = Path(config.hydra.runtime.output_dir)
    directory = output_dir / ".hydra"
    directory.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(own_part(config), directory / "config.yaml")
    OmegaConf.save(OmegaConf.masked_copy(config, "hydra"), directory / "hydra.yaml")
    OmegaConf.save(config.hydra.overrides.task, directory / "overrides.yaml")
    logger.info("Hydra's output directory is the job's: %s (hydra.run.dir is not used).", output_dir)


def _check(config: DictConfig) -> None:
    if config.hydra.mode == RunMode.MULTIRUN:
        raise HyperparameterError(f"hydra.mode=MULTIRUN: {ONE_RUN}.")
    asked = {
        "hydra.job.chdir": (config.hydra.job.chdir, "write to HydraConfig.get().runtime.output_dir instead"),
        "hydra.job.env_set": (
            config.hydra.job.env_set,
            "set them with Estimator(environment=...), or before the start",
        ),
        "hydra.callbacks": (config.hydra.callbacks, "call them in main"),
    }
    for name, (value, remedy) in asked.items():
        if value:
            raise HyperparameterError(f"{name} is given, and a job of several ranks does not do it: {remedy}.")


def _without_values(message: str, overrides: Sequence[str]) -> str:
    for override in overrides:
        message = message.replace(override, override.partition("=")[0] + "=…")
    return message
