"""Packages that are imported when they are first used."""

import subprocess
import sys
import textwrap

import pytest

PACKAGE = {
    "__init__.py": "import late.part\nanswer = late.part.number + 1\n",
    "part.py": "number = 41\n",
    "other.py": "number = 7\n",
}


def run(tmp_path, code):
    """Output of code in a process of its own, which finds a package ``late``."""
    folder = tmp_path / "late"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    begin = "import sys\nfrom tvm_sched.late_import import import_when_used\nimport_when_used('late')\n"
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", begin + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("import late; late.answer", 42),
        ("from late import answer as found; found", 42),
        ("import late.part; late.part.number", 41),
        ("from late.part import number as found; found", 41),
    ],
)
def test_first_use_imports(tmp_path, use, found):
    before, last = use.rsplit(";", 1)
    said = run(
        tmp_path, f"{before}\nprint({last.strip()}, 'late.part' in sys.modules, type(sys.modules['late']).__name__)"
    )
    assert said == [str(found), "True", "module"]


def test_a_statement_is_no_use(tmp_path):
    assert run(tmp_path, "import late\nprint('late' in sys.modules, 'late.part' in sys.modules)") == ["True", "False"]


def test_what_it_lacks_is_an_error(tmp_path):
    code = "import late\ntry:\n    late.other\nexcept AttributeError as error:\n    print(error.name)"
    assert run(tmp_path, code) == ["other"]


def test_one_finder_for_all_names(tmp_path):
    code = """
    import_when_used("late")
    import_when_used("late.other")
    print(sum(type(finder).__name__ == "_LateFinder" for finder in sys.meta_path))
    """
    assert run(tmp_path, code) == ["1"]


def test_packages_that_are_not_there_stay_so(tmp_path):
    code = """
    import_when_used("not_there")
    try:
        import not_there
    except ModuleNotFoundError as error:
        print(error.name)
    """
    assert run(tmp_path, code) == ["not_there"]


def test_modules_of_a_package(tmp_path):
    code = """
    import_when_used("late.other")
    import late.other
    before = type(sys.modules["late.other"]).__name__
    print(before, late.other.number, type(sys.modules["late.other"]).__name__)
    """
    assert run(tmp_path, code) == ["_LateModule", "7", "module"]
