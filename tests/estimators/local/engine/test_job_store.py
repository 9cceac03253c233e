from pathlib import Path

from estimators.local.engine.job_store import JobStore, StoredLine


def test_a_deleted_stream_takes_no_other_with_it_whose_name_begins_so(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    for stream in ("a/algo-1-1", "a/algo-1-12", "ab/algo-1-1"):
        store.add_lines(stream.partition("/")[0], [StoredLine(stream, 1, "said")])
    store.delete_lines("a")
    store.delete_lines("a/algo-1-1")
    assert [each.stream for each in store.lines("a", until=9)] == ["a/algo-1-12"]
    assert store.jobs_with_lines() == ["a", "ab"]
    store.delete_lines(None)
    assert not store.jobs_with_lines()
    store.close()
