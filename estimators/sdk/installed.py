"""Which SageMaker Python SDK is installed: V2 or V3. Both import as ``sagemaker``, so only one can be.

V2 contains ``sagemaker.pytorch``; V3, in two packages, ``sagemaker.core`` and ``sagemaker.train``. Nothing is imported
to find out: importing either takes seconds.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from estimators.errors import EstimatorError

Generation = Literal["V2", "V3"]

_V2, _V3 = "sagemaker>=2.257,<3", "sagemaker>=3.21"


@lru_cache(maxsize=1)
def installed() -> Generation:
    """Return the SDK that ``import sagemaker`` finds; raise EstimatorError if it is absent, incomplete, or mixed."""
    spec = find_spec("sagemaker")
    # The first directory on Python's path contains the package's __init__.py, which decides about the other
    # directories.
    places = [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()][:1]
    is_v2, is_v3 = (_any_has(places, part) for part in ("pytorch", "core"))
    if is_v2 and is_v3:
        raise EstimatorError(
            f"{places[0]} holds parts of the SageMaker Python SDK V2 and of V3, which break each other. Do: pip "
            f"uninstall sagemaker sagemaker-core sagemaker-train, and then: pip install '{_V2}', or '{_V3}'"
        )
    if is_v3 and not _any_has([Path(place, "sagemaker") for place in sys.path], "train"):
        raise EstimatorError(
            f"Of the SageMaker Python SDK V3 only sagemaker-core is installed, in {places[0]}. Do: pip install '{_V3}'"
        )
    if not is_v2 and not is_v3:
        raise EstimatorError(
            f"No SageMaker Python SDK is installed. Do: pip install 'smddp[sagemaker]' ({_V2}), or "
            f"'smddp[sagemaker-v3]' ({_V3})"
        )
    return "V2" if is_v2 else "V3"


def _any_has(places: list[Path], part: str) -> bool:
    return any((place / part / "__init__.py").is_file() for place in places)
