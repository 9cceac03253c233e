import pytest

from smddp.checkpoint.stores.s3_location import S3Location
from smddp.errors import CheckpointError

ATTEMPT = "5f3a9c01d2e4-0007"


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://bucket/runs/7", "bucket", "runs/7"),
        ("s3://bucket/runs/7//", "bucket", "runs/7"),
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://my.bucket-3/a b/ü", "my.bucket-3", "a b/ü"),
    ],
)
def test_reads_a_uri(uri: str, bucket: str, prefix: str) -> None:
    location = S3Location.parse(uri)
    assert (location.bucket, location.prefix) == (bucket, prefix)
    assert str(location) == f"s3://{bucket}/{prefix}".rstrip("/")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("bucket/runs", "expected s3://bucket/prefix"),
        ("https://bucket/runs", "expected s3://bucket/prefix"),
        ("s3:/bucket/runs", "expected s3://bucket/prefix"),
        ("s3://", "names no bucket"),
        ("s3:///runs", "names no bucket"),
        ("s3://ab", "names no bucket"),
        ("s3://Bucket/runs", "names no bucket"),
        ("s3://buck_et/runs", "names no bucket"),
        ("s3://buck..et/runs", "names no bucket"),
        ("s3://-bucket/runs", "names no bucket"),
        ("s3://bucket:80/runs", "names no bucket"),
        ("s3://user@bucket/runs", "names no bucket"),
        ("s3://bucket\n/runs", "names no bucket"),
        ("s3://bucket--usw2-az1--x-s3/runs", "directory bucket"),
        ("s3://bucket/../runs", "'..'"),
        ("s3://bucket/./runs", "'.'"),
        ("s3://bucket/runs//7", "empty"),
        ("s3://bucket//runs", "empty"),
        ("s3://bucket/runs\n7", "printable"),
        ("s3://bucket/runs\x007", "printable"),
        ("s3://bucket/" + "ü" * 401, "800 bytes"),
    ],
)
def test_refuses_what_is_no_place_for_checkpoints(uri: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        S3Location.parse(uri)


def test_keys_are_the_paths_of_the_directory_store() -> None:
    location = S3Location.parse("s3://bucket/runs/7")
    assert location.manifest_key(123) == "runs/7/step-000000000123/manifest.json"
    assert location.key(123, ATTEMPT, "state.json") == f"runs/7/step-000000000123/{ATTEMPT}/state.json"
    assert location.key(123, "", "model.safetensors") == "runs/7/step-000000000123/model.safetensors"
    assert S3Location.parse("s3://bucket").manifest_key(0) == "step-000000000000/manifest.json"


@pytest.mark.parametrize(("directory", "name"), [("..", "state.json"), (ATTEMPT, "../state.json"), ("", "x.bin")])
def test_a_manifest_cannot_name_files_elsewhere(directory: str, name: str) -> None:
    with pytest.raises(CheckpointError, match="no path of a file"):
        S3Location.parse("s3://bucket/runs").key(1, directory, name)


@pytest.mark.parametrize(
    ("key", "attempt"),
    [
        ("runs/7/step-000000000123/manifest.json", ""),
        ("runs/7/step-000000000123/state.json", ""),
        (f"runs/7/step-000000000123/{ATTEMPT}/model-00001-of-00002.safetensors", ATTEMPT),
        (f"runs/7/step-000000000123/{ATTEMPT}/notes.txt", None),
        (f"runs/7/step-000000000123/{ATTEMPT}/deeper/state.json", None),
        ("runs/7/step-000000000123/elsewhere/state.json", None),
        ("runs/7/step-000000000123/manifest.json.sagemaker-uploading", None),
        ("runs/7/step-123/state.json", None),
        ("runs/7/step-0000000001234/state.json", None),
        ("runs/7/step-000000000123", None),
        ("runs/77/step-000000000123/state.json", None),
        ("runs/7/other", None),
    ],
)
def test_only_names_of_ours_are_ours(key: str, attempt: str | None) -> None:
    assert S3Location.parse("s3://bucket/runs/7").attempt_of(key) == attempt
