"""What is a secret by its name or its form, and what only sounds like one."""

from __future__ import annotations

import json

import pytest

from smddp.secret_text import MASK, holds_private_key, looks_secret, masked, masked_text


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
        *("DB_PASS", "MYSQL_PWD", "PGPASSWORD", "DBPASSWORD", "WANDB_KEY", "OPENAI_KEY", "NEW_SERVICE_KEY", "ssh_key"),
        *("jwt", "webhook", "SLACK_WEBHOOK_URL", "token", "github_token_2", "dbPass", "clientSecret", "AUTHTOKEN"),
    ],
)
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert looks_secret(name)
    assert masked({name: "x" * 20}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "tokenizer", "key", "num_keys", "pattern", "monkey_patch", "s3_key", "token_ids", "num_tokens"),
        *("keyboard", "monkey", "eos_token", "token_dropout", "image_key", "S3_KEY", "SSH_PUBLIC_KEY", "PWD", "OLDPWD"),
        *("forward_pass", "passthrough", "VolumeKmsKeyId", "compass", "KEY", "key_padding_mask"),
    ],
)
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefgh123", f"Authorization: {MASK}"),
        ("sent with bearer abcdefgh123", f"sent with bearer {MASK}"),
        ("TOKEN='a b' lr=0.1", f"TOKEN='{MASK}' lr=0.1"),
        ('password = "a;b"', f'password = "{MASK}"'),
        ("{'db_pass': 'x', \"jwt\":\"y\"}", f"{{'db_pass': '{MASK}', \"jwt\":\"{MASK}\"}}"),
        ("postgres://u:p@ss:w@h/db and mail@x.org", f"postgres://{MASK}@h/db and mail@x.org"),
        ("train.py --token sek1 --epochs 3", f"train.py --token {MASK} --epochs 3"),
        ("logged in as hf_" + "a" * 34, f"logged in as {MASK}"),
        (f"eyJhbGciOi.eyJzdWIiOi.{'x' * 20}", MASK),
        ("use sk-proj-" + "a1" * 12 + ".", f"use {MASK}."),
        ("token_ids=[1,2] tokens: 5 num_tokens=x", "token_ids=[1,2] tokens: 5 num_tokens=x"),
        ("if password == other: key=value", "if password == other: key=value"),
        ("https://host/a?mail=me@x.org", "https://host/a?mail=me@x.org"),
        ("epoch 3: loss=0.25 https://host/x", "epoch 3: loss=0.25 https://host/x"),
    ],
)
def test_secrets_are_found_in_a_line(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_secrets_are_found_behind_options_and_beside_names() -> None:
    given = {
        "ContainerArguments": ["--token", "sek1", "--password", "--epochs", "3"],
        "Tags": [{"Key": "db-pass", "Value": "x"}],
        "credentials": {"client": "abc"},
    }
    assert masked(given) == {
        "ContainerArguments": ["--token", MASK, "--password", "--epochs", "3"],
        "Tags": [{"Key": "db-pass", "Value": MASK}],
        "credentials": {"client": MASK},
    }


@pytest.mark.parametrize(
    ("content", "is_key"),
    [
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", True),
        (b"\n-----BEGIN PGP PRIVATE KEY BLOCK-----\n", True),
        (b"PuTTY-User-Key-File-3: ssh-ed25519\n", True),
        (b'{"private_key": "-----BEGIN PRIVATE KEY-----\\n' + b"M" * 64, True),
        (b'KEY = """-----BEGIN RSA PRIVATE KEY-----\n' + b"M" * 64, True),
        (b'HEADER = "-----BEGIN OPENSSH PRIVATE KEY-----"\n', False),
        (b"-----BEGIN PUBLIC KEY-----\n" + b"M" * 64, False),
        (b"-----BEGIN CERTIFICATE-----\n", False),
    ],
)
def test_a_private_key_is_known_by_its_form(content: bytes, is_key: bool) -> None:
    assert holds_private_key(content) is is_key
