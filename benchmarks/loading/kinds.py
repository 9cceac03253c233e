"""The ways that images come to a training loop: each gives one epoch of them, or only the bytes that they lie in.

It is the program of the jobs that measure Pipe too, so it imports nothing of its neighbours.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SHAPE = (3, 96, 96)
IMAGE_BYTES = 3 * 96 * 96
BATCH = 64
_PIECE = 2**20

Epoch = Iterable[int]
"""Counts: of images, or of bytes, as they come."""


@dataclass(kw_only=True, frozen=True)
class Place:
    """Where the data lie: ``files/*.bin``, ``tar/*.tar`` and ``jsonl/*.jsonl`` below each."""

    directory: Path
    uri: str
    workers: int


@dataclass(kw_only=True, frozen=True)
class Kind:
    """A way to read."""

    begin: Callable[[Place], Epoch]
    """Makes all ready; what is timed begins with the first ``next``."""
    gives: str = "images"
    needs: str | None = None
    """A package that may be missing."""
    piped: bool = False
    """Whether it is a job of its own, whose channel is in Pipe mode."""

    @property
    def is_available(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None


def image(content: Any) -> Any:
    """Decode: an image is its bytes, so that what is measured is how they come."""
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(SHAPE)


def from_tar(record: dict[str, Any]) -> tuple[Any, int]:
    return image(record["img"]), int(record["cls"])


def from_json(record: dict[str, Any]) -> tuple[Any, int]:
    return image(base64.b64decode(record["image"])), record["label"]


DECODE = {"tar": from_tar, "jsonl": from_json}


def plain_decoder(format: str, record: dict[str, Any]) -> tuple[Any, int]:  # noqa: A002 # what it is called everywhere
    return DECODE[format](record)


class Files:
    """A file an image, its label in the name."""

    def __init__(self, directory: Path) -> None:
        self.names = sorted(str(path) for path in directory.iterdir())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return image(Path(self.names[index]).read_bytes()), int(self.names[index].rpartition("-")[2])


def batches(loader: Iterable[Any], order: Any = None) -> Epoch:
    for images, _ in loader:
        yield len(images)
        if order is not None:
            order.advance()


def plain(place: Place) -> Epoch:
    from torch.utils.data import DataLoader

    return batches(DataLoader(Files(place.directory / "files"), BATCH, shuffle=True, num_workers=place.workers))


def mapped(place: Place) -> Epoch:
    from smddp import ElasticSampler

    return ordered(place, Files(place.directory / "files"), ElasticSampler)


def ordered(place: Place, dataset: Any, sampler: Any) -> Epoch:
    from torch.utils.data import DataLoader

    order = sampler(len(dataset), global_batch=BATCH, tail="short")
    return batches(DataLoader(dataset, batch_sampler=order, num_workers=place.workers), order)


def shards(format: str, place: Place, location: str | None = None) -> Epoch:  # noqa: A002
    from torch.utils.data import DataLoader

    from smddp.data.shards import ShardedDataset, ShardOrder

    dataset = ShardedDataset(location or str(place.directory / format), decode=partial(plain_decoder, format))
    order = ShardOrder(dataset, global_batch=BATCH, tail="short")
    return batches(DataLoader(dataset.decoder, batch_sampler=order, num_workers=place.workers), order)


def streamed_shards(format: str, place: Place) -> Epoch:  # noqa: A002
    return shards(format, place, f"{place.uri}/{format}")


def pipe(format: str, place: Place) -> Epoch:  # noqa: A002
    from torch.utils.data import DataLoader

    from smddp import Job
    from smddp.data.pipes import PipeDataset, PipeOrder

    channel = Job.detect().inputs["training"]
    dataset = PipeDataset(channel, format=format, decode=partial(plain_decoder, format))
    order = PipeOrder(dataset, global_batch=BATCH)
    return batches(DataLoader(dataset.decoder, batch_sampler=order, num_workers=place.workers), order)


def connector() -> dict[str, Any]:
    from s3torchconnector import S3ClientConfig

    return {
        "region": os.environ["AWS_REGION"],
        "endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "s3client_config": S3ClientConfig(force_path_style=True),
    }


def connector_image(reader: Any) -> tuple[Any, int]:
    return image(reader.read()), int(reader.key.rpartition("-")[2])


def connector_mapped(place: Place) -> Epoch:
    from s3torchconnector import S3MapDataset
    from torch.utils.data import DataLoader

    dataset = S3MapDataset.from_prefix(f"{place.uri}/files/", transform=connector_image, **connector())
    len(dataset)  # it lists the objects
    return batches(DataLoader(dataset, BATCH, shuffle=True, num_workers=place.workers))


def connector_samples(reader: Any) -> list[tuple[Any, int]]:
    found: list[tuple[Any, int]] = []
    if not reader.key.endswith(".tar"):  # the index
        return found
    content = b""
    with tarfile.open(fileobj=reader, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            if member.name.endswith(".img"):
                content = file.read()
            else:
                found.append((image(content), int(file.read())))
    return found


def connector_tar(place: Place) -> Epoch:
    """In the order of the objects: the connector shuffles nothing."""
    from s3torchconnector import S3IterableDataset
    from torch.utils.data import DataLoader, IterableDataset

    objects = S3IterableDataset.from_prefix(
        f"{place.uri}/tar/", enable_sharding=True, transform=connector_samples, **connector()
    )

    class Samples(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for samples in objects:
                yield from samples

    return batches(DataLoader(Samples(), BATCH, num_workers=place.workers))


def pieces(file: Any) -> Epoch:
    while piece := file.read(_PIECE):
        yield len(piece)


def source_bytes(place: Place) -> Epoch:
    from smddp.data.source.s3 import S3Source

    source = S3Source(f"{place.uri}/tar")

    def epoch(names: list[str]) -> Epoch:
        for name in names:
            with source.open(name) as stream:
                yield from pieces(stream)

    return epoch([blob.name for blob in source.list()])


def keys_of(place: Place) -> tuple[Any, str, list[str]]:
    import boto3

    client, (bucket, _, prefix) = boto3.client("s3"), place.uri.removeprefix("s3://").partition("/")
    found = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/tar/")["Contents"]
    return client, bucket, [entry["Key"] for entry in found if entry["Key"].endswith(".tar")]


def boto3_bytes(place: Place) -> Epoch:
    client, bucket, keys = keys_of(place)
    return (count for key in keys for count in pieces(client.get_object(Bucket=bucket, Key=key)["Body"]))


def connector_bytes(place: Place) -> Epoch:
    from s3torchconnector import S3IterableDataset

    objects = S3IterableDataset.from_prefix(f"{place.uri}/tar/", **connector())
    return (count for reader in objects if reader.key.endswith(".tar") for count in pieces(reader))


def obstore_bytes(place: Place) -> Epoch:
    import obstore
    from obstore.store import S3Store

    _, bucket, keys = keys_of(place)
    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL_S3"],
        region=os.environ["AWS_REGION"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return (len(piece) for key in keys for piece in obstore.get(store, key).stream(min_chunk_size=_PIECE))


def raw_bytes(connections: int, place: Place) -> Epoch:
    """Presigned requests on bare sockets into one piece of memory, in no order: the least that a reader must do."""
    import http.client
    from urllib.parse import urlsplit

    client, bucket, keys = keys_of(place)
    urls = [
        urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})) for key in keys
    ]

    def read(urls: list[Any], counts: list[int]) -> None:
        connection, memory = http.client.HTTPConnection(urls[0].netloc), memoryview(bytearray(_PIECE))
        for url in urls:
            connection.request("GET", f"{url.path}?{url.query}")
            answer = connection.getresponse()
            while count := answer.readinto(memory):
                counts.append(count)

    def epoch() -> Epoch:
        counts: list[int] = []
        shares = [urls[number::connections] for number in range(min(connections, len(urls)))]
        threads = [threading.Thread(target=read, args=(share, counts)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield sum(counts)

    return epoch()


KINDS: dict[str, Kind] = {
    "plain DataLoader, local files": Kind(begin=plain),
    "File, local files": Kind(begin=mapped),
    "File, tar": Kind(begin=partial(shards, "tar")),
    "File, jsonl": Kind(begin=partial(shards, "jsonl")),
    "S3 stream, tar": Kind(begin=partial(streamed_shards, "tar")),
    "S3 stream, jsonl": Kind(begin=partial(streamed_shards, "jsonl")),
    "s3torchconnector, objects": Kind(begin=connector_mapped, needs="s3torchconnector"),
    "s3torchconnector, tar": Kind(begin=connector_tar, needs="s3torchconnector"),
    "Pipe, tar": Kind(begin=partial(pipe, "tar"), piped=True),
    "raw sockets, 1": Kind(begin=partial(raw_bytes, 1), gives="bytes"),
    "raw sockets, 4": Kind(begin=partial(raw_bytes, 4), gives="bytes"),
    "S3Source": Kind(begin=source_bytes, gives="bytes"),
    "boto3 get_object": Kind(begin=boto3_bytes, gives="bytes"),
    "obstore": Kind(begin=obstore_bytes, gives="bytes", needs="obstore"),
    "s3torchconnector": Kind(begin=connector_bytes, gives="bytes", needs="s3torchconnector"),
}
"""The first is what all others are compared with; a new kind is a line here."""


def measure(name: str, place: Place) -> dict[str, float]:
    """Read one epoch: its images, its bytes (an image's own, without what is packed around them), and the time."""
    kind = KINDS[name]
    epoch = kind.begin(place)
    began, used = time.perf_counter(), _processor_seconds()
    count = sum(epoch)
    seconds = time.perf_counter() - began
    images = count if kind.gives == "images" else 0
    return {
        "images": images,
        "bytes": images * IMAGE_BYTES or count,
        "seconds": seconds,
        "processor": _processor_seconds() - used,
    }


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--uri", default="")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    place = Place(directory=options.directory, uri=options.uri, workers=options.workers)
    options.report.write_text(json.dumps(measure(options.kind, place)))
