"""A directory as a store: what is durable when, who may commit, what is removed, and what an error says."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from smddp.checkpoint.format.manifest import LARGEST_MANIFEST
from smddp.checkpoint.stores import AlreadyCommittedError, StoreError, filesystem
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.errors import CheckpointError
from tests.torture.watched_files import Operation, WatchedFiles

FIRST, SECOND = "5f3a9c01d2e4-0001", "5f3a9c01d2e4-0002"
STEP = "step-000000000007"


def manifest_of(directory: str) -> bytes:
    return b'{"directory": "%s"}' % directory.encode()


def save(store: DirectoryStore, directory: str = FIRST, *, step: int = 7, replacing: bytes | None = None) -> bytes:
    store.write(step, directory, "state.json", [memoryview(b"{}")])
    store.write(step, directory, "model.safetensors", [memoryview(b"1234"), memoryview(b""), memoryview(b"56")])
    manifest = manifest_of(directory)
    store.commit(step, directory, manifest, replacing=replacing)
    return manifest


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def read(store: DirectoryStore, name: str, size: int, *, offset: int = 0, directory: str = FIRST) -> bytes:
    memory = bytearray(size)
    store.read_into(7, directory, name, offset, memoryview(memory))
    return bytes(memory)


def watched(root: Path) -> tuple[DirectoryStore, list[str]]:
    """Give a store, and the list of what it does: the operation and its paths, from the root's parent."""
    told: list[str] = []

    def note(operation: Operation) -> None:
        paths = [path for path in (operation.path, operation.target) if path is not None]
        told.append(" ".join([operation.kind, *(os.path.relpath(path, root.parent) for path in paths)]))

    return DirectoryStore(root, files=WatchedFiles(note)), told


def test_bytes_are_durable_before_their_names_and_these_before_the_manifest_has_its_own(tmp_path: Path) -> None:
    store, told = watched(tmp_path / "new" / "root")
    save(store)
    told[:] = [each for each in told if not each.startswith("sync_directory ../..")]
    step = f"root/{STEP}"
    attempt, partial = f"{step}/{FIRST}", f"{step}/{FIRST}/manifest.json.smddp-partial"
    assert told == [
        *("make_directory .", "sync_directory ..", "make_directory root", "sync_directory ."),
        *(f"make_directory {step}", f"make_directory {attempt}"),
        *(f"{kind} {attempt}/state.json" for kind in ("create", "write", "sync")),
        *(f"make_directory {step}", f"make_directory {attempt}"),
        *(f"{kind} {attempt}/model.safetensors" for kind in ("create", "write", "write", "sync")),
        *(f"{kind} {partial}" for kind in ("create", "write", "sync")),
        *(f"sync_directory {attempt}", f"sync_directory {step}", "sync_directory root"),
        f"link {partial} {step}/manifest.json",
        f"sync_directory {step}",
        f"unlink {partial}",
    ]


def test_the_manifest_is_gone_durably_before_anything_else_is_removed(tmp_path: Path) -> None:
    store, told = watched(tmp_path)
    save(store)
    told.clear()
    store.remove(7)
    base = f"{tmp_path.name}/{STEP}"
    assert told == [
        *(f"unlink {base}/manifest.json", f"sync_directory {base}"),
        *(f"unlink {base}/{FIRST}/{name}" for name in ("model.safetensors", "state.json")),
        *(f"rmdir {base}/{FIRST}", f"rmdir {base}"),
    ]
    assert not list(tmp_path.iterdir())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    manifest = save(store)
    assert store.read_manifest(7) == manifest
    assert store.size(7, FIRST, "model.safetensors") == 6
    assert read(store, "model.safetensors", 6) == b"123456"
    assert read(store, "model.safetensors", 3, offset=2) == b"345"
    assert read(store, "model.safetensors", 0) == b""
    assert store.size(7, FIRST, "other.safetensors") is None
    assert store.read_manifest(8) is None


def test_large_files_are_written_whole(tmp_path: Path) -> None:
    store, pieces = DirectoryStore(tmp_path), [os.urandom(size) for size in (5, 20 * 2**20 + 3, 8 * 2**20, 1)]
    store.write(7, FIRST, "model.safetensors", [memoryview(piece) for piece in pieces])
    assert (tmp_path / STEP / FIRST / "model.safetensors").read_bytes() == b"".join(pieces)


def test_a_file_that_ends_too_early_or_is_missing_is_told(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    save(store)
    with pytest.raises(CheckpointError, match=r"^model.safetensors ends after 6 of at least 7 bytes$"):
        read(store, "model.safetensors", 5, offset=2)
    with pytest.raises(CheckpointError, match=r"^other.safetensors is missing$"):
        read(store, "other.safetensors", 1)


def test_steps_are_told_in_order_and_nothing_else_is(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "root")
    assert store.steps() == []
    for step in (10, 9, 100):
        save(store, step=step)
    for name in ("step-7", "step-00000000000\u0667", "step-000000000008.sagemaker-uploading", "other"):
        (tmp_path / "root" / name).mkdir()
    (tmp_path / "root" / "step-000000000001").touch()
    assert store.steps() == [9, 10, 100]
    assert list(store.newest_first()) == [100, 10, 9]


def test_a_step_that_is_a_link_is_one_that_is_there(tmp_path: Path) -> None:
    archive, store = DirectoryStore(tmp_path / "archive"), DirectoryStore(tmp_path / "root")
    save(archive)
    save(store, step=6)
    (tmp_path / "root" / STEP).symlink_to(tmp_path / "archive" / STEP)
    assert store.steps() == [6, 7]
    assert store.read_manifest(7) == manifest_of(FIRST)
    assert read(store, "model.safetensors", 6) == b"123456"


def test_a_step_that_is_a_link_to_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    save(store, step=6)
    (tmp_path / STEP).symlink_to(tmp_path / "archive" / STEP)
    for look in (store.steps, lambda: list(store.newest_first())):
        with pytest.raises(StoreError, match=rf"{STEP} is a symbolic link that leads to no directory: bring back"):
            look()


def test_the_attempts_at_a_step_are_told(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    save(store, SECOND)
    store.write(7, FIRST, "state.json", [memoryview(b"{}")])
    (tmp_path / STEP / "other").mkdir()
    assert store.attempts(7) == [FIRST, SECOND]
    assert store.attempts(8) == []


class NoHardLinks(FileSystem):
    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))


@pytest.mark.parametrize("files", [FileSystem(), NoHardLinks()], ids=["links", "no-links"])
def test_of_two_writers_the_first_commits(tmp_path: Path, files: FileSystem) -> None:
    store = DirectoryStore(tmp_path, files=files)
    first = save(store, FIRST)
    with pytest.raises(AlreadyCommittedError, match=f"another process committed .*{STEP}.*give each its own"):
        save(store, SECOND)
    with pytest.raises(AlreadyCommittedError):
        save(store, SECOND, replacing=manifest_of(SECOND))
    assert store.read_manifest(7) == first
    second = save(store, SECOND, replacing=first)
    assert store.read_manifest(7) == second
    with pytest.raises(AlreadyCommittedError):
        save(store, FIRST, replacing=first)
    with pytest.raises(AlreadyCommittedError):
        save(store, FIRST, step=8, replacing=first)  # nothing stands there


@pytest.mark.parametrize("replacing", [None, b"damaged"])
def test_a_second_try_of_a_commit_that_had_succeeded_is_no_error(tmp_path: Path, replacing: bytes | None) -> None:
    store = DirectoryStore(tmp_path)
    if replacing is not None:
        (tmp_path / STEP).mkdir()
        (tmp_path / STEP / "manifest.json").write_bytes(replacing)
    manifest = save(store, replacing=replacing)
    store.commit(7, FIRST, manifest, replacing=replacing)
    assert tree(tmp_path / STEP) == {"manifest.json", f"{FIRST}/state.json", f"{FIRST}/model.safetensors"}


def test_a_link_that_says_no_although_it_was_made_is_a_commit(tmp_path: Path) -> None:
    class LostAnswer(FileSystem):
        """As NFS does it: the answer is lost, and the second request finds what the first one did."""

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            super().link(source, target)

    store = DirectoryStore(tmp_path, files=LostAnswer())
    assert store.read_manifest(7) is None
    assert save(store) == store.read_manifest(7)


def test_an_attempt_that_the_manifest_names_is_not_discarded(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    first = save(store, FIRST)
    whole = tree(tmp_path)
    store.discard(7, FIRST)
    assert tree(tmp_path) == whole
    save(store, SECOND, replacing=first)
    store.discard(7, FIRST)
    store.discard(7, FIRST)
    assert store.attempts(7) == [SECOND]
    assert read(store, "model.safetensors", 6, directory=SECOND) == b"123456"


def test_the_last_attempt_that_is_discarded_takes_the_step_with_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for attempt in (FIRST, SECOND):
        store.write(7, attempt, "state.json", [memoryview(b"{}")])
    store.discard(7, FIRST)
    assert store.steps() == [7]
    store.discard(7, SECOND)
    assert store.steps() == []
    store.discard(7, SECOND)


def test_files_of_format_1_are_discarded_once_they_are_replaced_and_removed(tmp_path: Path) -> None:
    store, step = DirectoryStore(tmp_path), tmp_path / STEP
    step.mkdir()
    for name in ("manifest.json", "state.json", "model.safetensors", "model.safetensors.smddp-partial"):
        (step / name).write_bytes(b'{"format": 1}')
    whole = tree(step)
    store.discard(7, "")
    assert tree(step) == whole
    save(store, replacing=b'{"format": 1}')
    store.discard(7, "")
    assert tree(step) == {"manifest.json", f"{FIRST}/state.json", f"{FIRST}/model.safetensors"}
    (step / "state.json").touch()
    store.remove(7)
    assert not step.exists()


def test_other_peoples_files_stay(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    save(store)
    others = {
        "notes.txt",
        f"{STEP}/notes.txt",
        f"{STEP}/manifest.json.sagemaker-uploading",
        f"{STEP}/{FIRST}/state.json.sagemaker-uploading",
        f"{STEP}/{FIRST}/deeper/state.json",
        f"{STEP}/other/state.json",
    }
    for name in others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    store.remove(7)
    assert tree(tmp_path) == others
    store.remove(7)
    store.remove(8)
    save(store)
    assert store.read_manifest(7) is not None


def test_nothing_is_removed_or_written_through_a_link(tmp_path: Path) -> None:
    theirs, elsewhere = DirectoryStore(tmp_path / "elsewhere"), tmp_path / "elsewhere"
    for step in (7, 8):
        save(theirs, step=step)
    whole = tree(elsewhere)
    store, root = DirectoryStore(tmp_path / "root"), tmp_path / "root"
    (root / STEP).mkdir(parents=True)
    (root / STEP / FIRST).symlink_to(elsewhere / STEP / FIRST)
    (root / STEP / "state.json").symlink_to(elsewhere / STEP / FIRST / "state.json")
    (root / "step-000000000008").symlink_to(elsewhere / "step-000000000008")
    for step in (7, 8):
        with pytest.raises(StoreError, match="Not a directory; move the file away"):
            store.write(step, FIRST, "state.json", [memoryview(b"overwritten")])
        store.discard(step, FIRST)
        store.remove(step)
    assert not (root / "step-000000000008").is_symlink()
    assert tree(elsewhere) == whole
    assert (elsewhere / STEP / FIRST / "state.json").read_bytes() == b"{}"


def test_a_manifest_that_is_too_large_or_no_file_is_not_read(tmp_path: Path) -> None:
    store, path = DirectoryStore(tmp_path), tmp_path / STEP / "manifest.json"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, LARGEST_MANIFEST + 1)
    with pytest.raises(CheckpointError, match=f"is not a file of at most {LARGEST_MANIFEST} bytes"):
        store.read_manifest(7)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="is not a file"):
        store.read_manifest(7)


def test_a_manifest_that_cannot_be_read_is_not_taken_for_missing(tmp_path: Path) -> None:
    class Failing(FileSystem):
        def status(self, path: Path) -> os.stat_result | None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    save(DirectoryStore(tmp_path))
    with pytest.raises(StoreError, match="Input/output error; the disk or the way to it fails"):
        DirectoryStore(tmp_path, files=Failing()).read_manifest(7)


def test_a_step_that_another_writer_has_just_taken_back_is_made_again(tmp_path: Path) -> None:
    def take_back(operation: Operation) -> None:
        if operation.kind == "make_directory" and operation.path.name == FIRST and not taken:
            taken.append(operation.path.parent.rmdir())

    taken: list[None] = []
    store = DirectoryStore(tmp_path, files=WatchedFiles(take_back))
    assert save(store) == store.read_manifest(7)
    assert taken


def test_a_place_that_can_be_written_to_is_made_and_left_empty(tmp_path: Path) -> None:
    DirectoryStore(tmp_path / "new" / "root").check_writable()
    assert not list((tmp_path / "new" / "root").iterdir())


def a_file_in_the_place(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "root").touch()
    return DirectoryStore(tmp_path / "root")


def a_file_above_the_place(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "file").touch()
    return DirectoryStore(tmp_path / "file" / "root")


def answering(code: int, kind: str) -> Callable[[Path], DirectoryStore]:
    def store(tmp_path: Path) -> DirectoryStore:
        def answer(operation: Operation) -> None:
            if operation.kind == kind:
                raise OSError(code, os.strerror(code), str(operation.path))

        return DirectoryStore(tmp_path / "root", files=WatchedFiles(answer))

    return store


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (a_file_in_the_place, "Not a directory; move the file away"),
        (a_file_above_the_place, "Not a directory; move the file away"),
        (answering(errno.EACCES, "make_directory"), "Permission denied; let this user write there"),
        (answering(errno.EACCES, "create"), "Permission denied; let this user write there"),
        (answering(errno.EROFS, "create"), "Read-only file system; make it writable, or save somewhere else"),
        (answering(errno.ENOSPC, "write"), "No space left on device; free some space there"),
        (answering(errno.EDQUOT, "sync"), "Disk quota exceeded; free some space there"),
        (
            answering(errno.EIO, "sync"),
            "Input/output error; the disk or the way to it fails: see the kernel's log",
        ),
    ],
)
def test_a_place_that_cannot_be_written_to_is_told_with_what_to_do(
    tmp_path: Path, place: Callable[[Path], DirectoryStore], told: str
) -> None:
    store = place(tmp_path)
    with pytest.raises(StoreError, match=f"^cannot write to {store.root}: {told}") as error:
        store.check_writable()
    assert not error.value.transient
    with pytest.raises(StoreError, match=f"^cannot write {store.root}/{STEP}/.*: {told}"):
        save(store)


def test_a_directory_that_others_may_not_enter_is_no_obstacle(tmp_path: Path) -> None:
    """The root may be a mount within a directory that is not ours: its name is not ours to flush."""

    def answer(operation: Operation) -> None:
        if operation.kind == "sync_directory" and operation.path == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(operation.path))

    (tmp_path / "root").mkdir()
    store = DirectoryStore(tmp_path / "root", files=WatchedFiles(answer))
    store.check_writable()
    save(store)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_directories_that_another_made_a_moment_ago_are_made_durable(tmp_path: Path, depth: int) -> None:
    """The job makes its run directory, with those above it and the one for checkpoints."""
    root = tmp_path / "runs" / "7" / "checkpoints"
    made = [tmp_path, *reversed(root.parents[:2]), root][: depth + 2]
    made[-1].mkdir(parents=True)
    store, told = watched(root)
    store.check_writable()
    for path in (tmp_path, tmp_path / "runs", tmp_path / "runs" / "7"):
        assert told.count(f"sync_directory {os.path.relpath(path, root.parent)}") == 1, path


def test_a_commit_whose_last_flush_failed_may_be_found_and_tried_again(tmp_path: Path) -> None:
    failing = True

    def answer(operation: Operation) -> None:
        if failing and operation.kind == "sync_directory" and (tmp_path / STEP / "manifest.json").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))

    store = DirectoryStore(tmp_path, files=WatchedFiles(answer))
    with pytest.raises(StoreError, match="Input/output error"):
        save(store)
    assert store.read_manifest(7) == manifest_of(FIRST)
    store.discard(7, FIRST)
    failing = False
    store.commit(7, FIRST, manifest_of(FIRST), replacing=None)
    assert read(store, "model.safetensors", 6) == b"123456"


def test_a_commit_that_is_tried_again_never_writes_into_the_manifest(tmp_path: Path) -> None:
    """The first try gave the partial file its second name, and failed before the partial one was removed."""
    failing = True

    def answer(operation: Operation) -> None:
        final = tmp_path / STEP / "manifest.json"
        if failing and operation.kind == "sync_directory" and final.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))
        if not failing and operation.kind == "write":
            assert final.read_bytes() == manifest_of(FIRST)

    store = DirectoryStore(tmp_path, files=WatchedFiles(answer))
    with pytest.raises(StoreError, match="Input/output error"):
        save(store)
    assert (tmp_path / STEP / FIRST / "manifest.json.smddp-partial").samefile(tmp_path / STEP / "manifest.json")
    failing = False
    store.commit(7, FIRST, manifest_of(FIRST), replacing=None)
    assert store.read_manifest(7) == manifest_of(FIRST)


def test_a_lock_that_somebody_keeps_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "LONGEST_LOCK", 0.2)
    store = DirectoryStore(tmp_path)
    store.write(7, FIRST, "state.json", [memoryview(b"{}")])
    with FileSystem().lock(tmp_path / STEP), pytest.raises(StoreError, match=r"has had its lock.*lsof") as error:
        store.commit(7, FIRST, manifest_of(FIRST), replacing=None)
    assert error.value.transient
    assert store.read_manifest(7) is None
    store.commit(7, FIRST, manifest_of(FIRST), replacing=None)


def test_a_process_that_is_forked_under_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    with FileSystem().lock(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with FileSystem().lock(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_tensors_that_somebody_laid_beside_a_manifest_stay(tmp_path: Path) -> None:
    store, adapter = DirectoryStore(tmp_path), tmp_path / STEP / "lora.safetensors"
    save(store)
    adapter.touch()
    store.remove(7)
    assert tree(tmp_path) == {f"{STEP}/lora.safetensors"}
    store.remove(7)  # as the next life does whose former one was killed
    assert adapter.exists()


@pytest.mark.parametrize("point", range(6))
def test_a_removal_of_format_1_that_is_killed_is_finished_by_the_next(tmp_path: Path, point: int) -> None:
    class Killed(BaseException):
        pass

    def answer(operation: Operation) -> None:
        done.append(operation)
        if len(done) == point + 1:
            raise Killed

    done: list[Operation] = []
    (tmp_path / STEP).mkdir()
    for name in ("manifest.json", "model.safetensors", "tail.safetensors", "state.json"):
        (tmp_path / STEP / name).write_bytes(b'{"format": 1}')
    with pytest.raises(Killed):
        DirectoryStore(tmp_path, files=WatchedFiles(answer)).remove(7)
    DirectoryStore(tmp_path).remove(7)
    assert not list(tmp_path.iterdir())


def test_a_directory_in_the_place_of_the_manifest_is_told_with_what_to_do(tmp_path: Path) -> None:
    store, manifest = DirectoryStore(tmp_path), tmp_path / STEP / "manifest.json"
    manifest.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="a directory for instance: move that away"):
        store.read_manifest(7)
    with pytest.raises(CheckpointError, match=f"^cannot write {manifest}: .* move that away"):
        save(store)
    with pytest.raises(StoreError, match="move the directory away"):
        store.remove(7)


def test_what_this_user_may_not_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    class Barred(FileSystem):
        def status(self, path: Path) -> os.stat_result | None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        def read_into(self, path: Path, offset: int, memory: memoryview) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        def names(self, path: Path) -> dict[str, bool]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    store = DirectoryStore(tmp_path, files=Barred())
    for look in (
        lambda: store.read_manifest(7),
        lambda: store.size(7, FIRST, "state.json"),
        lambda: read(store, "state.json", 1),
        store.steps,
    ):
        with pytest.raises(StoreError, match=f"^cannot read {tmp_path}.*: Permission denied; let this user read it"):
            look()


def test_a_file_beside_the_steps_is_replaced_whole_and_never_through_a_link(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "run")
    assert store.names_beside("notes") == []
    with pytest.raises(StoreError, match="cannot write"):
        store.write_beside("notes", "a.json", b"1")  # the directory is not made again once it is gone
    (tmp_path / "run").mkdir()
    store.write_beside("notes", "a.json", b"1")
    store.write_beside("notes", "a.json", b"two")
    assert store.names_beside("notes") == ["a.json"]
    assert store.read_beside("notes", "a.json", largest=3) == b"two"
    assert store.read_beside("notes", "b.json", largest=3) is None
    with pytest.raises(CheckpointError, match=r"a\.json is not a file of at most 2 bytes"):
        store.read_beside("notes", "a.json", largest=2)
    assert store.steps() == []
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "others").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot write"):
        store.write_beside("others", "a.json", b"1")
    assert store.names_beside("others") == []
