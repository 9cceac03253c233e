from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from estimators.local_mode.directory import Instructions
from estimators.local_mode.overlay import literal, overlay, services_of

INSTRUCTIONS = Instructions(
    fit_process=1,
    image="mine",
    checkpoints="/home/me/checkpoints",
    checkpoint_path="/opt/ml/checkpoints",
    shared_memory=2**30,
    ends_with_first_host=False,
    shows_log=True,
)
SERVICES = {"algo-1-abcde": "algo-1", "algo-2-abcde": "algo-2"}


def test_each_host_gets_what_the_sdk_does_not_give_it() -> None:
    content = overlay("services: {}\nversion: '2.3'\n", SERVICES, INSTRUCTIONS, "job-7")
    assert content["version"] == "2.3"
    assert content["networks"] == {"sagemaker-local": {"name": "job-7"}}
    assert list(content["services"]) == list(SERVICES)
    second = content["services"]["algo-2-abcde"]
    place = {"source": "/home/me/checkpoints", "target": "/opt/ml/checkpoints"}
    assert second["volumes"] == [{"type": "bind", **place}]
    assert (second["stop_grace_period"], second["shm_size"]) == ("120s", 2**30)
    assert sorted(second["labels"].values()) == ["algo-2", "job-7"]


def test_what_is_not_asked_for_stays_the_sdks() -> None:
    bare = replace(INSTRUCTIONS, checkpoints=None, shared_memory=None)
    content = overlay("services: {}\n", SERVICES, bare, "job-7")
    assert "version" not in content
    assert set(content["services"]["algo-1-abcde"]) == {"stop_grace_period", "labels"}


def test_a_dollar_sign_is_no_variable() -> None:
    assert literal("environment: [PRICE=5$HOME, TWO=$$]") == "environment: [PRICE=5$$HOME, TWO=$$$$]"


def test_hosts_are_read_in_the_sdks_order(tmp_path: Path) -> None:
    names = [f"algo-{number}-abcde" for number in range(1, 12)]
    for name in names:
        config = tmp_path / name / "input" / "config"
        config.mkdir(parents=True)
        (config / "resourceconfig.json").write_text(json.dumps({"hosts": names, "current_host": name}))
    (tmp_path / "shared").mkdir()
    assert list(services_of(tmp_path).values()) == [f"algo-{number}" for number in range(1, 12)]
