"""A manifest says exactly what was written, or is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint import Manifest
from smddp.checkpoint.manifest import FileRecord, NewerFormatError
from smddp.errors import CheckpointError

RECORDS = st.builds(FileRecord, size=st.integers(0), xxh3_128=st.text("0123456789abcdef", min_size=32, max_size=32))
MANIFESTS = st.builds(
    Manifest,
    step=st.integers(0, 10**12 - 1),
    epoch=st.integers(0),
    world_size=st.integers(1),
    saved_at=st.datetimes(timezones=st.just(timezone.utc)),
    smddp_version=st.text(),
    torch_version=st.text(),
    files=st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,64}\.safetensors", fullmatch=True), RECORDS).flatmap(
        lambda files: RECORDS.map(lambda record: {**files, "state.json": record})
    ),
    metrics=st.dictionaries(st.text(), st.floats(allow_nan=False)),
)
EXAMPLE = Manifest(
    step=1234,
    epoch=3,
    world_size=2,
    saved_at=datetime(2026, 11, 21, 7, 30, tzinfo=timezone.utc),
    smddp_version="0.1.0",
    torch_version="2.15.0",
    files={
        "state.json": FileRecord(size=12, xxh3_128="0123456789abcdef" * 2),
        "model.safetensors": FileRecord(size=345, xxh3_128="f" * 32),
    },
    metrics={"loss": 0.25},
)


def signed(content: dict[str, Any]) -> bytes:
    """Write a manifest as a stranger would who has read how."""
    zeros = json.dumps({**content, "xxh3_128": "0" * 32}).encode()
    return json.dumps({**content, "xxh3_128": xxhash.xxh3_128_hexdigest(zeros)}).encode()


@given(manifest=MANIFESTS)
def test_comes_back_as_it_was(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_is_plain_json_that_a_stranger_can_read_and_write() -> None:
    content = json.loads(EXAMPLE.to_json())
    assert content["format"] == 1
    assert content["files"]["model.safetensors"] == {"size": 345, "xxh3_128": "f" * 32}
    assert Manifest.from_json(signed(content)) == EXAMPLE


def test_metrics_that_json_has_no_number_for_come_back() -> None:
    metrics = {"a": float("inf"), "b": float("-inf"), "c": float("nan")}
    back = Manifest.from_json(replace(EXAMPLE, metrics=metrics).to_json())
    assert repr(back.metrics) == repr(metrics)


def test_any_flipped_bit_is_noticed() -> None:
    data = EXAMPLE.to_json()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            Manifest.from_json(bytes(damaged))


def test_any_truncation_is_noticed() -> None:
    data = EXAMPLE.to_json()
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            Manifest.from_json(data[:length])


def test_random_bytes_are_refused() -> None:
    dice = random.Random(0)
    for _ in range(200):
        with pytest.raises(CheckpointError):
            Manifest.from_json(dice.randbytes(dice.randrange(200)))


def test_a_newer_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormatError, match=r"version 2.*up to 1; install a newer smddp"):
        Manifest.from_json(signed({"format": 2, "parts": "something new"}))


RECORD = {"size": 1, "xxh3_128": "0" * 32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "format is 0"),
        ({"format": "1"}, "format is '1'"),
        ({"format": True}, "format is True"),
        ({"step": -1}, "step is -1"),
        ({"step": 10**12}, "step is 1000000000000"),
        ({"step": 1.0}, "step is 1.0"),
        ({"step": True}, "step is True"),
        ({"epoch": -1}, "epoch is -1"),
        ({"world_size": 0}, "world_size is 0"),
        ({"saved_at": "yesterday"}, "yesterday"),
        ({"saved_at": "2026-11-21T07:30:00"}, "time zone"),
        ({"saved_at": 5}, "fromisoformat"),
        ({"smddp_version": None}, "smddp_version is None"),
        ({"metrics": {"loss": "low"}}, "'low' is not a float"),
        ({"metrics": {"loss": 1}}, "1 is not a float"),
        ({"metrics": []}, "metrics is"),
        ({"files": {}}, "state.json among them"),
        ({"files": []}, "files is"),
        ({"files": {"state.json": {"size": 1}}}, "xxh3_128"),
        ({"files": {"state.json": {**RECORD, "more": 1}}}, "more"),
        ({"files": {"state.json": []}}, "is not a manifest"),
        ({"files": {"state.json": {**RECORD, "size": -1}}}, "size is -1"),
        ({"files": {"state.json": {**RECORD, "size": 1.5}}}, "size is 1.5"),
        ({"files": {"state.json": {**RECORD, "xxh3_128": "0" * 31}}}, "xxh3_128 is"),
        ({"extra": 1}, "extra"),
        *(
            ({"files": {"state.json": RECORD, name: RECORD}}, "a file is")
            for name in (
                "../model.safetensors",
                "a/b.safetensors",
                "/etc/x.safetensors",
                "..",
                ".safetensors",
                "a..safetensors",
                "manifest.json",
                "model.pt",
                "a\\b.safetensors",
                "model.safetensors\n",
                "m\u00f6del.safetensors",
                "\u0661.safetensors",
                "",
            )
        ),
    ],
)
def test_refuses_what_no_manifest_says(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Manifest.from_json(signed({**json.loads(EXAMPLE.to_json()), **change}))


@pytest.mark.parametrize(
    "data",
    [b"[]", b"null", b"1", b'{"format": 1, "format": 1}', b'{"format": NaN}', b"[" * 100_000, b'{"format": 1}'],
)
def test_refuses_what_is_no_manifest_at_all(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        Manifest.from_json(data)


def test_a_missing_key_is_named() -> None:
    content = json.loads(EXAMPLE.to_json())
    del content["epoch"]
    with pytest.raises(CheckpointError, match="the keys is"):
        Manifest.from_json(signed(content))


def test_a_time_in_another_zone_is_the_same_moment() -> None:
    zone = timezone(timedelta(hours=9))
    moved = replace(EXAMPLE, saved_at=EXAMPLE.saved_at.astimezone(zone))
    assert Manifest.from_json(moved.to_json()).saved_at == EXAMPLE.saved_at
