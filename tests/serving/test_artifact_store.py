"""Artifacts on their way to nodes; nothing here needs Ray."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tvm_sched_cluster.serving.artifact_store import ArtifactStore, fetch, local_folder
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.pipeline import load_manifest

PART = 5000


@pytest.fixture
def manifest(artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "node"))
    return load_manifest(artifact)


def reader(folder, asked):
    def read(name, offset):
        asked.append((name, offset))
        return (folder / name).read_bytes()[offset : offset + PART]

    return read


def test_a_node_gets_what_it_lacks_once(manifest, artifact):
    names = manifest.stages[1].files
    asked = []
    folder = fetch(manifest, names, reader(artifact, asked))
    assert [name for name, _ in asked] == ["stage1.so"] * -(-manifest.files["stage1.so"].bytes // PART)
    assert sorted(file.name for file in folder.iterdir()) == ["stage1.so"]
    assert (folder / "stage1.so").read_bytes() == (artifact / "stage1.so").read_bytes()
    assert folder.stat().st_mode & 0o077 == 0
    asked.clear()
    assert fetch(manifest, names, reader(artifact, asked)) == folder
    assert not asked


def test_what_was_damaged_here_is_fetched_again(manifest, artifact):
    file = fetch(manifest, ["stage0.so"], reader(artifact, [])) / "stage0.so"
    file.write_bytes(b"?" + file.read_bytes()[1:])
    fetch(manifest, ["stage0.so"], reader(artifact, []))
    assert file.read_bytes() == (artifact / "stage0.so").read_bytes()


def test_what_is_not_whole_is_no_file_of_the_artifact(manifest, artifact):
    with pytest.raises(ServingError, match=r"stage0\.so ended after 5000 bytes"):
        fetch(manifest, ["stage0.so"], lambda name, offset: b"" if offset else bytes(PART))
    with pytest.raises(InputError, match=r"stage0\.so: was altered"):
        fetch(manifest, ["stage0.so"], lambda name, offset: bytes(manifest.files[name].bytes))
    assert not list(local_folder(manifest).glob(".*"))
    assert fetch(manifest, ["stage0.so"], reader(artifact, []))


def test_a_folder_that_cannot_be_written_is_told(manifest, artifact, tmp_path):
    (tmp_path / "node").write_text("a file")
    with pytest.raises(ServingError, match=r"cannot be written .*; give this node another place with TVM_SCHED_CACHE"):
        fetch(manifest, ["stage0.so"], reader(artifact, []))


def test_the_store_hands_out_what_it_was_given(manifest, artifact, monkeypatch, tmp_path):
    store = ArtifactStore(manifest)
    assert store.missing() == ["stage0.so", "stage1.so", "stage2.so"]
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(store.read, "stage2.so", 0)  # waits
        for name in store.missing():
            content = (artifact / name).read_bytes()
            store.write(name, content[:PART])
            store.write(name, content[PART:])
        assert early.result(60) == (artifact / "stage2.so").read_bytes()
    assert store.missing() == []
    again = ArtifactStore(manifest)  # one that starts again finds them
    assert again.missing() == []
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "other node"))
    folder = fetch(manifest, ["stage2.so"], again.read)
    assert (folder / "stage2.so").read_bytes() == (artifact / "stage2.so").read_bytes()
