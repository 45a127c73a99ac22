"""The cache of files: what is found, what is thrown away, and several processes at once."""

import multiprocessing
import os

import pytest

from tvm_sched.file_cache import DEFAULT_LIMIT, FileCache, compiled_models
from tvm_sched_runtime.errors import InputError


def make(tmp_path, name, size=100, fill=b"x"):
    path = tmp_path / name
    path.write_bytes(fill * size)
    return path


def test_what_was_kept_is_found(tmp_path):
    cache = FileCache(tmp_path / "cache", 10_000)
    assert cache.find("a") is None
    assert cache.keep("a", {"f": make(tmp_path, "one")}, {"model": "m"})
    folder, about = cache.find("a")
    assert (folder / "f").read_bytes() == b"x" * 100
    assert about == {"model": "m"}


@pytest.mark.parametrize("damage", ["bytes", "gone", "manifest"])
def test_a_damaged_entry_is_a_miss_and_can_be_kept_again(tmp_path, damage):
    cache = FileCache(tmp_path / "cache", 10_000)
    cache.keep("a", {"f": make(tmp_path, "one")}, {})
    entry = tmp_path / "cache" / "a"
    if damage == "bytes":
        (entry / "f").write_bytes(b"x" * 99 + b"y")
    elif damage == "gone":
        (entry / "f").unlink()
    else:
        (entry / "manifest.json").write_text("{")
    assert cache.find("a") is None
    assert cache.keep("a", {"f": make(tmp_path, "one")}, {})
    assert cache.find("a") is not None


def test_the_limit_removes_what_was_not_used_for_longest(tmp_path):
    cache = FileCache(tmp_path / "cache", 3 * 1200)
    for position, key in enumerate("abc"):
        cache.keep(key, {"f": make(tmp_path, "one", 1000)}, {})
        os.utime(tmp_path / "cache" / key, (position, position))
    cache.find("a")  # now the last used
    cache.keep("d", {"f": make(tmp_path, "one", 1000)}, {})
    assert {entry.key for entry in cache.entries()} == {"a", "c", "d"}
    assert sum(entry.size for entry in cache.entries()) <= cache.limit
    assert not cache.keep("e", {"f": make(tmp_path, "large", 4000)}, {}), "it alone is above the limit"
    assert cache.find("a") is not None


def test_nothing_else_stays_in_the_folder(tmp_path):
    cache = FileCache(tmp_path / "cache", 1500)
    for key in "abab":
        cache.keep(key, {"f": make(tmp_path, "one", 1000)}, {})
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert cache.clear() == 1
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    make(tmp_path, "cache")
    cache = FileCache(tmp_path / "cache", 10_000)
    assert not cache.keep("a", {"f": make(tmp_path, "one")}, {})
    assert cache.find("a") is None
    assert cache.entries() == []


def _keep_and_find(folder, source, start, queue):
    cache = FileCache(folder, 2500)
    start.wait()
    wrong = 0
    for position in range(60):
        key = str(position % 4)
        found = cache.find(key)
        if found is None:
            cache.keep(key, {"f": source}, {"key": key})
        elif found[1] != {"key": key}:
            wrong += 1
    queue.put(wrong)


def test_processes_share_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, queue, source = context.Event(), context.Queue(), make(tmp_path, "one", 500)
    workers = [
        context.Process(target=_keep_and_find, args=(tmp_path / "cache", source, start, queue)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    start.set()
    assert [queue.get(timeout=60) for _ in workers] == [0, 0, 0]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


@pytest.mark.parametrize(("said", "size"), [("1000", 1000), ("2K", 2048), ("1.5 GiB", 3 << 29), ("3MB", 3 << 20)])
def test_the_limit_is_a_size(monkeypatch, said, size):
    monkeypatch.setenv("TVM_SCHED_CACHE_LIMIT", said)
    assert compiled_models().limit == size


def test_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "1")
    assert compiled_models() is None
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "0")
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    assert compiled_models() == FileCache(tmp_path / "compiled", DEFAULT_LIMIT)
    for wrong in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("TVM_SCHED_CACHE_LIMIT", wrong)
        with pytest.raises(InputError, match="TVM_SCHED_CACHE_LIMIT"):
            compiled_models()
