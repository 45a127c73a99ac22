"""The cache of small results: what is found, what is thrown away, and several processes at once."""

import multiprocessing
import sqlite3

import pytest

from tvm_sched.blob_cache import BlobCache


def test_what_was_kept_is_found(tmp_path):
    cache = BlobCache(tmp_path / "new" / "cache.sqlite")
    assert cache.find(["a"]) == {}
    assert cache.contents() == (0, 0)
    cache.keep({"a": b"one", "b": b"two"})
    assert cache.find({"a", "b", "c"}) == {"a": b"one", "b": b"two"}
    assert cache.contents() == (2, 6)
    assert cache.clear()
    assert not cache.clear()
    assert cache.find(["a"]) == {}


def test_more_keys_than_one_query_takes(tmp_path):
    cache = BlobCache(tmp_path / "cache.sqlite")
    entries = {f"key {k}": b"%d" % k for k in range(1200)}
    cache.keep(entries)
    assert cache.find(entries.keys()) == entries


def test_a_damaged_entry_is_left_out_and_kept_again(tmp_path):
    cache = BlobCache(tmp_path / "cache.sqlite")
    cache.keep({"a": b"one", "b": b"two"})
    with sqlite3.connect(cache.path) as connection:
        connection.execute("update entry set content = ? where key = 'a'", (b"onE",))
    connection.close()
    assert cache.find(["a", "b"]) == {"b": b"two"}
    cache.keep({"a": b"one"})
    assert cache.find(["a"]) == {"a": b"one"}


@pytest.mark.filterwarnings("error")
def test_a_damaged_file_is_made_anew(tmp_path):
    cache = BlobCache(tmp_path / "cache.sqlite")
    cache.path.write_bytes(b"no database" * 1000)
    assert cache.find(["a"]) == {}
    cache.keep({"a": b"one"})
    assert cache.find(["a"]) == {"a": b"one"}


@pytest.mark.filterwarnings("error")
def test_a_file_that_cannot_be_used_holds_nothing(tmp_path):
    (tmp_path / "cache.sqlite").mkdir()
    cache = BlobCache(tmp_path / "cache.sqlite" / "x" / ".." / ".")
    cache.keep({"a": b"one"})
    assert cache.find(["a"]) == {}
    assert cache.contents() == (0, 0)


def test_the_limit_removes_what_was_not_used_for_longest(tmp_path, monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("tvm_sched.blob_cache.time.time", lambda: next(now))
    cache = BlobCache(tmp_path / "cache.sqlite", limit=30)
    for key in "abc":
        cache.keep({key: b"0123456789"})
    cache.find(["a"])
    cache.keep({"d": b"0123456789"})
    assert set(cache.find("abcd")) == {"a", "c", "d"}
    assert cache.contents() == (3, 30)


def test_nothing_is_taken_or_kept_where_caches_are_not_used(tmp_path, monkeypatch):
    cache = BlobCache(tmp_path / "cache.sqlite")
    cache.keep({"a": b"one"})
    unused = BlobCache(cache.path, used=False)
    unused.keep({"b": b"two"})
    assert unused.find(["a"]) == {}
    assert cache.find(["a", "b"]) == {"a": b"one"}
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "1")
    assert cache.find(["a"]) == {}


def _keep_many(path, name):
    for k in range(20):
        BlobCache(path).keep({f"{name} {k}": name.encode() * 1000, "shared": b"the same"})


def test_several_processes_at_once(tmp_path):
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_keep_many, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    keys = [f"{name} {k}" for name in "abc" for k in range(20)]
    found = BlobCache(path).find([*keys, "shared"])
    assert found == {**{key: key[0].encode() * 1000 for key in keys}, "shared": b"the same"}
