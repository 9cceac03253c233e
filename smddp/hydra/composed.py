"""One rank's config: composed by Hydra from its files and overrides, the same on all ranks, and kept with the run.

Hydra's own runner is not used: it would make a directory with the time in its name on each rank, set up the logging
again, and end a failed rank by ``sys.exit(1)``. What a config asks of that runner is refused, not passed over.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFiles:
    """Where a script's config is."""

    path: str | None
    """An absolute directory, or ``pkg://`` and a package; None if there are no files."""
    name: str | None
    """The primary config, without ``.yaml``."""
    version_base: str | None
    """The Hydra version whose defaults hold."""

    def initialize(self, script_name: str) -> AbstractContextManager[None]:
        """Let Hydra look for config files here, until the context is left."""
        if self.path is None:
            return hydra.initialize(config_path=None, job_name=script_name, version_base=self.version_base)
        if self.path.startswith("pkg://"):
            package = self.path.removeprefix("pkg://")
            return hydra.initialize_config_module(package, job_name=script_name, version_base=self.version_base)
        return hydra.initialize_config_dir(self.path, job_name=script_name, version_base=self.version_base)


def compose_config(files: ConfigFiles, overrides: Sequence[str], job: Job, script_name: str) -> DictConfig:
    """Compose the config, Hydra's own part included, and let ``HydraConfig`` and ``${hydra:...}`` know it.

    Hydra's output directory is the job's: ``job.output_data_dir``.

    Raises:
        HyperparameterError: Hydra can't compose it, or it asks for what a job does not do. Values of overrides are not
            in the message.
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
    """Return the config without Hydra's part, as Hydra gives it to a script."""
    own = config.copy()
    with read_write(own), open_dict(own):
        del own["hydra"]
    assert isinstance(own, DictConfig)
    return own


def recorded_values(config: DictConfig) -> dict[str, Any]:
    """Return the config as JSON values, its interpolations as they are written: ``${oc.env:TOKEN}`` tells no secret."""
    values = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return dict(json.loads(json.dumps(values, default=str)))


def agree(config: DictConfig, membership: Membership) -> None:
    """See that all ranks have composed the same, and let ``${now:...}`` be rank 0's time on all of them.

    Raises:
        HyperparameterError: On every rank: one has composed something else.
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
    OmegaConf.clear_cache(config)  # of what was asked for before


def write_files(config: DictConfig) -> None:
    """Write config, overrides and Hydra's own part where Hydra does: under ``.hydra`` in its output directory."""
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
