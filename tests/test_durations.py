"""What `make test-fast` runs."""

from pathlib import Path

import durations

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]


class Item:
    """What is asked of a collected test."""

    def __init__(self, name, slow=False):
        self.nodeid, self.slow, self.path = name, slow, ROOT / name.partition("::")[0]

    def get_closest_marker(self, _):
        return self.slow


def test_one_case_of_each_quick_test_and_the_quickest_of_a_folder_that_has_none(monkeypatch):
    long = {"a/test_a.py::test_long": 0.4, "b/test_b.py::test_longer": 3.0, "b/test_b.py::test_long": 2.0}
    monkeypatch.setattr(durations, "read_long", lambda: long)
    names = ["a/test_a.py::test_x[1]", "a/test_a.py::test_x[2]", *long, "c/test_c.py::test_y@g"]
    items = [*map(Item, names), Item("a/test_a.py::test_slow", slow=True)]
    assert [item.nodeid for item in durations.quick(items)] == [names[0], names[5], names[4]]


def test_every_test_that_is_listed_is_there():
    assert [name for name in durations.read_long() if not durations.is_there(name)] == []


def test_what_takes_long_alone_is_listed_with_the_fixtures_that_it_shares(pytester, monkeypatch):
    pytester.makepyfile("""
        import time
        import pytest

        def work(seconds):
            begin = time.process_time()
            while time.process_time() < begin + seconds:
                pass

        @pytest.fixture(scope="module")
        def shared():
            work(0.1)

        def test_first(shared):
            pass

        @pytest.mark.parametrize("again", [0, 1])
        def test_second(shared, again):
            assert True

        def test_long():
            work(0.1)

        def test_quick():
            pass
    """)
    path = pytester.path / "tests" / "durations.txt"
    path.parent.mkdir()
    (name,) = (file.name for file in pytester.path.glob("*.py"))
    path.write_text(f"9.0 gone.py::test_gone\n9.0 {name}::test_quick\n")
    monkeypatch.setattr(durations, "LONG", path)
    monkeypatch.setattr(durations, "QUICK", 0.05)
    pytester.inline_run("-p", "no:cacheprovider", plugins=[durations.Meter()]).assertoutcome(passed=5)
    assert list(durations.read_long()) == [f"{name}::test_{which}" for which in ("first", "long", "second")]
