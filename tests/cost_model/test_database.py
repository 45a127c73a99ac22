"""The database of measurements: what it keeps, drops and forgets, and what becomes of damaged files."""

import multiprocessing

import msgspec
import pytest

from tvm_sched.cost_model import CostWarning
from tvm_sched.cost_model.database import Database
from tvm_sched.cost_model.profile import Machine, Measurement
from tvm_sched_runtime.errors import InputError

SMALL = "onednn.matmul|16384|a float32[16,32];p float32[32,16]|float32[16,16]"


def test_database(tmp_path):
    database, machine = Database(tmp_path / "sub" / "m.sqlite"), Machine("x", 2, versions={"apache-tvm": "0.27.0"})
    assert database.read(machine, "cpu") == {}
    row = Measurement(SMALL, "m", 3e-6)
    database.write(machine, "cpu", [row])
    assert database.read(machine, "cpu") == {SMALL: row}
    assert database.read(machine, "other") == {}
    newer = msgspec.structs.replace(machine, versions={"apache-tvm": "0.28.0"})
    assert database.read(newer, "cpu") == {}, "another version's kernels are measured anew"
    patched = msgspec.structs.replace(machine, versions={"apache-tvm": "0.27.1"})
    assert database.read(patched, "cpu") == {SMALL: row}
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "m.sqlite").symlink_to("m.sqlite")
    with pytest.raises(InputError, match="TVM_SCHED_CACHE"):
        Database(tmp_path / "folder" / "m.sqlite").write(machine, "cpu", [row])


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_damaged_database_is_made_anew(tmp_path, keep):
    file, machine = tmp_path / "m.sqlite", Machine("x", 2)
    rows = [Measurement(f"{SMALL} {k}", "m", 3e-6) for k in range(100)]
    Database(file).write(machine, "cpu", rows)
    file.write_bytes(file.read_bytes()[:keep] + b"no database at all" * 1000)
    with pytest.warns(CostWarning, match=r"is damaged .* it is m.sqlite.damaged now"):
        assert Database(file).read(machine, "cpu") == {}
    Database(file).write(machine, "cpu", rows[:1])
    assert list(Database(file).read(machine, "cpu")) == [rows[0].key]


def test_a_database_drops_its_oldest_entries(tmp_path):
    database, machine = Database(tmp_path / "m.sqlite", entries=5), Machine("x", 2)
    for k in range(8):
        database.write(machine, "cpu", [Measurement(f"{SMALL} {k}"), Measurement(f"{SMALL} 0", "m", (k + 1) * 1e-6)])
    kept = database.read(machine, "cpu")
    assert sorted(name[-1] for name in kept) == ["0", "4", "5", "6", "7"]
    assert kept[f"{SMALL} 0"].in_run == 8e-6, "what is written again is the newest"


def test_processes_write_one_database_at_once(tmp_path):
    file, machine = tmp_path / "m.sqlite", Machine("x", 2)

    def write(k):
        for j in range(10):
            Database(file).write(machine, "cpu", [Measurement(f"{SMALL} {k} {j}", "m", 1e-6)])

    writers = [multiprocessing.get_context("fork").Process(target=write, args=(k,)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(Database(file).read(machine, "cpu")) == 30


def test_a_database_is_cleared(tmp_path):
    database = Database(tmp_path / "m.sqlite")
    assert not database.clear()
    database.write(Machine("x", 2), "cpu", [Measurement(SMALL)])
    assert database.size() > 0
    (tmp_path / "m.sqlite.damaged").touch()
    assert database.clear()
    assert not list(tmp_path.iterdir())


def test_kernels_are_forgotten_by_signature(tmp_path):
    database, machine = Database(tmp_path / "m.sqlite"), Machine("x", 2)
    rows = [Measurement(SMALL), Measurement(SMALL, content="12ab"), Measurement(f"{SMALL} 2", content="12ab")]
    for device in ("cpu", "other"):
        database.write(machine, device, rows)
    database.forget(machine, "cpu", [SMALL])
    assert list(database.read(machine, "cpu")) == [f"{SMALL} 2#12ab"]
    assert len(database.read(machine, "other")) == 3
