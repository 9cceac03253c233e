"""What is a secret by its name or its form, and what only sounds like one."""

from __future__ import annotations

import json

import pytest

from estimators.console.masking import MASK, looks_secret, masked


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "dbPassword",
        "api_key",
        "apiKey",
        "AWS_SECRET_ACCESS_KEY",
        "wandb.api-key",
        "auth_token",
        "result_key",
    ],
)
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert looks_secret(name)
    assert masked({name: "x" * 20}) == {name: MASK}


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer", "key", "num_keys", "pattern", "monkey_patch", "s3_key"])
def test_what_only_sounds_like_one_is_shown(name: str) -> None:
    assert masked({name: "cl100k"}) == {name: "cl100k"}


def test_numbers_and_flags_are_shown() -> None:
    assert masked({"pad_token": "50256", "use_auth_token": '"true"'}) == {
        "pad_token": "50256",
        "use_auth_token": '"true"',
    }


def test_secrets_are_found_in_json_in_addresses_and_in_assignments() -> None:
    inner = json.dumps(json.dumps({"deep": {"token": "abc"}, "lr": 0.1}))
    shown = masked({"config": inner, "repo": "https://me:pw@host/x", "mpi": "-x HF_TOKEN=abc -x LR=1"})
    assert json.loads(json.loads(shown["config"])) == {"deep": {"token": MASK}, "lr": 0.1}
    assert shown["repo"] == f"https://{MASK}@host/x"
    assert shown["mpi"] == f"-x HF_TOKEN={MASK} -x LR=1"


def test_a_value_without_a_secret_stays_as_it_was_written() -> None:
    written = '{"lr" : 0.10}'
    assert masked({"config": written}) == {"config": written}
