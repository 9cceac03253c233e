from __future__ import annotations

from typing import Any

import pytest

from estimators.local import Docker


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": 512}, "memory=512: give a whole number"),
        ({"memory": "lots"}, "memory='lots': give a whole number"),
        ({"memory": "1m"}, "at least '6m'"),
        ({"cpus": "x"}, "cpus='x': give a number"),
        ({"cpus": float("inf")}, "cores of this machine"),
        ({"images": ["a"]}, "give a dict of patterns"),
        ({"images": {"*": ""}}, "give a dict of patterns"),
    ],
)
def test_refuses_what_docker_would_not_take(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="give") as refusal:
        Docker(**given)
    assert said in str(refusal.value)
