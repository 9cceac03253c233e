"""A manifest says exactly what was written, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint import Manifest
from smddp.checkpoint.format.manifest import LARGEST_MANIFEST, FileRecord, NewerFormatError, file_names, is_part_name
from smddp.errors import CheckpointError

DIGESTS = st.text("0123456789abcdef", min_size=32, max_size=32)
RECORDS = st.builds(FileRecord, size=st.integers(0, 2**63 - 1), xxh3_128=DIGESTS)
PARTS = st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,50}", fullmatch=True), st.integers(1, 3))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    run = draw(st.text("0123456789abcdef", min_size=12, max_size=12))
    parts = {part: count for part, count in draw(PARTS).items() if is_part_name(part)}
    names = [name for part, count in parts.items() for name in file_names(part, count)]
    return Manifest(
        run=run,
        directory=f"{run}-{draw(st.integers(0, 10**6)):04}",
        step=draw(st.integers(0, 10**12 - 1)),
        epoch=draw(st.integers(0)),
        position=draw(st.none() | st.integers(0)),
        world_size=draw(st.integers(1)),
        saved_at=draw(st.datetimes(timezones=st.just(timezone.utc))),
        smddp_version=draw(st.text()),
        torch_version=draw(st.text()),
        files={name: draw(RECORDS) for name in [*names, "state.json", "digests.json"]},
        metrics=draw(st.dictionaries(st.text(), st.floats(allow_nan=False))),
        hyperparameters=draw(st.dictionaries(st.text(), JSON, max_size=3)),
    )


EXAMPLE = Manifest(
    run="5f3a9c01d2e4",
    directory="5f3a9c01d2e4-0007",
    step=1234,
    epoch=3,
    position=4096,
    world_size=2,
    saved_at=datetime(2026, 11, 21, 7, 30, tzinfo=timezone.utc),
    smddp_version="0.1.0",
    torch_version="2.15.0",
    files={
        "state.json": FileRecord(size=12, xxh3_128="0123456789abcdef" * 2),
        "digests.json": FileRecord(size=34, xxh3_128="a" * 32),
        "model-00001-of-00002.safetensors": FileRecord(size=345, xxh3_128="f" * 32),
        "model-00002-of-00002.safetensors": FileRecord(size=678, xxh3_128="e" * 32),
        "ema.safetensors": FileRecord(size=9, xxh3_128="d" * 32),
    },
    metrics={"loss": 0.25},
    hyperparameters={"lr": 0.1, "layers": [1, {"two": None}]},
)
FORMAT_1 = Path(__file__).parents[1] / "fixtures/format-1/checkpoints/step-000000000003/manifest.json"


def signed(content: dict[str, Any]) -> bytes:
    """Write a manifest as a stranger would who has read how."""
    zeros = json.dumps({**content, "xxh3_128": "0" * 32}).encode()
    return json.dumps({**content, "xxh3_128": xxhash.xxh3_128_hexdigest(zeros)}).encode()


@given(manifest=manifests())
def test_comes_back_as_it_was(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_is_plain_json_that_a_stranger_can_read_and_write() -> None:
    content = json.loads(EXAMPLE.to_json())
    assert content["format"] == 2
    assert content["files"]["ema.safetensors"] == {"size": 9, "xxh3_128": "d" * 32}
    assert Manifest.from_json(signed(content)) == EXAMPLE


def test_metrics_that_json_has_no_number_for_come_back() -> None:
    metrics = {"a": float("inf"), "b": float("-inf"), "c": float("nan")}
    back = Manifest.from_json(replace(EXAMPLE, metrics=metrics).to_json())
    assert repr(back.metrics) == repr(metrics)


def test_says_which_files_hold_a_part() -> None:
    assert EXAMPLE.parts == {
        "ema": ["ema.safetensors"],
        "model": ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    }


def test_reads_format_1() -> None:
    manifest = Manifest.from_json(FORMAT_1.read_bytes())
    assert (manifest.format, manifest.step, manifest.epoch, manifest.world_size) == (1, 3, 1, 1)
    assert (manifest.run, manifest.directory, manifest.position, manifest.hyperparameters) == ("", "", None, {})
    assert sorted(manifest.parts) == ["model", "optimizer", "rng", "sampler"]
    assert manifest.files["model.safetensors"].size == 776
    assert manifest.metrics["loss"] == 0.5
    assert isnan(manifest.metrics["worst"])


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes"])
def test_hyperparameters_that_are_no_json_are_refused_when_written(value: object) -> None:
    with pytest.raises(CheckpointError, match="hyperparameters cannot be written as JSON"):
        replace(EXAMPLE, hyperparameters={"lr": value}).to_json()


def test_its_repr_masks_secrets() -> None:
    shown = repr(replace(EXAMPLE, hyperparameters={"lr": 0.1, "api_key": "one-two"}))
    assert "'lr': 0.1" in shown
    assert "one-two" not in shown


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(CheckpointError, match="keep large hyperparameters in a file"):
        replace(EXAMPLE, hyperparameters={"text": "x" * LARGEST_MANIFEST}).to_json()


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


@given(data=st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        Manifest.from_json(data)


KEYS = st.sampled_from(sorted(json.loads(EXAMPLE.to_json())))
ANYTHING = JSON | st.sampled_from(
    ["", "5f3a9c01d2e4", "5f3a9c01d2e4-0007", {"state.json": {}}, {"state.json": None}, float("nan"), [[]], -1, 2**70]
)


@given(changes=st.dictionaries(KEYS, ANYTHING), gone=st.sets(st.text()))
def test_whatever_a_signed_manifest_says_nothing_but_a_checkpoint_error_comes_of_it(
    changes: dict[str, Any], gone: set[str]
) -> None:
    content = {**json.loads(EXAMPLE.to_json()), **changes}
    try:
        manifest = Manifest.from_json(signed({key: content[key] for key in content if key not in gone}))
    except CheckpointError:
        return
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_part_of_more_files_than_there_are_numbers_is_refused() -> None:
    content = json.loads(EXAMPLE.to_json())
    record = {"size": 0, "xxh3_128": "0" * 32}
    names = [f"a-{number:05}-of-{last}.safetensors" for last in (10000, 99999) for number in range(60_000)]
    content["files"] |= dict.fromkeys(names, record)
    with pytest.raises(CheckpointError, match="the files of a is"):
        Manifest.from_json(signed(content))


def test_a_newer_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormatError, match=r"version 3.*up to 2; install a newer smddp"):
        Manifest.from_json(signed({"format": 3, "parts": "something new"}))


RECORD = {"size": 1, "xxh3_128": "0" * 32}
NEEDED = {"state.json": RECORD, "digests.json": RECORD}


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
        ({"position": -1}, "position is -1"),
        ({"position": 1.0}, "position is 1.0"),
        ({"run": ""}, "directory is"),
        ({"run": "", "directory": ""}, "directory is"),
        ({"run": "0" * 12}, "directory is"),
        ({"run": "../../../../", "directory": "../../../../-0001"}, "directory is"),
        ({"run": 5, "directory": 5}, "directory is 5"),
        ({"run": [], "directory": []}, "directory is"),
        ({"directory": "5f3a9c01d2e4"}, "directory is"),
        ({"directory": "5f3a9c01d2e4-0001\n"}, "directory is"),
        ({"directory": None}, "directory is None"),
        ({"hyperparameters": None}, "hyperparameters is None"),
        ({"world_size": 0}, "world_size is 0"),
        ({"saved_at": "yesterday"}, "yesterday"),
        ({"saved_at": "2026-11-21T07:30:00"}, "time zone"),
        ({"saved_at": 5}, "fromisoformat"),
        ({"smddp_version": None}, "smddp_version is None"),
        ({"metrics": {"loss": "low"}}, "'low' is not a float"),
        ({"metrics": {"loss": 1}}, "1 is not a float"),
        ({"metrics": []}, "metrics is"),
        ({"files": {}}, "state.json among them"),
        ({"files": {"state.json": RECORD}}, "digests.json and state.json among them"),
        ({"files": NEEDED | {"a.safetensors": RECORD, "a-00001-of-00001.safetensors": RECORD}}, "the files of a is"),
        ({"files": NEEDED | {"a-00001-of-00002.safetensors": RECORD}}, "the files of a is"),
        ({"files": NEEDED | {"a-00000-of-00001.safetensors": RECORD}}, "the files of a is"),
        ({"files": NEEDED | {"a-00001-of-00002-00001-of-00001.safetensors": RECORD}}, "a file is"),
        ({"files": []}, "files is"),
        ({"files": {"state.json": {"size": 1}}}, "xxh3_128"),
        ({"files": {"state.json": {**RECORD, "more": 1}}}, "more"),
        ({"files": {"state.json": []}}, "is not a manifest"),
        ({"files": {"state.json": {**RECORD, "size": -1}}}, "size is -1"),
        ({"files": {"state.json": {**RECORD, "size": 1.5}}}, "size is 1.5"),
        ({"files": {"state.json": {**RECORD, "xxh3_128": "0" * 31}}}, "xxh3_128 is"),
        ({"extra": 1}, "extra"),
        *(
            ({"files": NEEDED | {name: RECORD}}, "a file is")
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


@pytest.mark.parametrize("size", [-1, 2**63, 10**400, True, 1.0])
def test_a_size_that_no_file_has_is_refused(size: Any) -> None:
    with pytest.raises(CheckpointError, match=r"size is .*, not a count of bytes"):
        FileRecord(size=size, xxh3_128="a" * 32)
