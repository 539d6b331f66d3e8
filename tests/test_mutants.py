"""The planted faults of tools/mutants.py fit the code, and the tool tells a fault that does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from mutants import PACKAGE, ROOT, Fault, find_kernels, list_failures, list_tests, read_faults


def plant(root: Path) -> Fault:
    """Write a source file and a test below `root`, and return a fault of them."""
    for file, text in (("src/swivel/a.py", "x = 1\ny = 2\n"), ("tests/test_a.py", "def test_x():\n    pass\n")):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
    return Fault("x", "a.py", "x = 1", "x = 2", ("tests/test_a.py::test_x",))


def test_every_fault_fits_the_code_and_its_tests_exist() -> None:
    faults = read_faults()
    problems = {fault.id: fault.find_problem(ROOT) for fault in faults}
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert all(fault.tests and fault.old != fault.new for fault in faults)
    assert len(problems) == len(faults)  # no two have one name


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"old": "x = 3"}, "the old text occurs 0 times in a.py"),
        ({"old": "\n"}, "the old text occurs 2 times in a.py"),
        ({"file": "b.py"}, "no file b.py"),
        ({"tests": ("tests/test_a.py",)}, ""),
        ({"tests": ("tests/test_b.py",)}, "no test tests/test_b.py"),
        ({"tests": ("tests/test_a.py::test_y",)}, "no test tests/test_a.py::test_y"),
    ],
)
def test_a_fault_that_does_not_fit_has_a_reason(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    fault = dataclasses.replace(plant(tmp_path), **changes)  # type: ignore[arg-type]
    assert fault.find_problem(tmp_path) == problem


def test_a_fault_that_is_not_python_is_an_error(tmp_path: Path) -> None:
    fault = plant(tmp_path)
    assert fault.plant("x = 1\n") == "x = 2\n"
    with pytest.raises(SyntaxError):
        dataclasses.replace(fault, new="x =").plant("x = 1\n")


def test_kernels_with_constants_of_a_changed_file_are_compiled_again() -> None:
    found = find_kernels(ROOT / "src", ROOT / PACKAGE / "corpus/character_classes.py")
    assert [module.name for module in found] == ["tokenizer_kernels.py"]
    found = find_kernels(ROOT / "src", ROOT / PACKAGE / "counts/matrix_kernels.py")
    assert [module.relative_to(ROOT / PACKAGE).as_posix() for module in found] == ["counts/matrix_kernels.py"]
    assert not list(find_kernels(ROOT / "src", ROOT / PACKAGE / "vectors/search.py"))


def test_a_test_of_a_file_that_runs_anyway_is_not_listed() -> None:
    faults = [
        Fault("x", "a.py", "x", "y", tests) for tests in [("b.py::f", "a.py"), ("a.py::f",), ("b.py::f", "b.py::g")]
    ]
    assert list_tests(faults) == ["a.py", "b.py::f", "b.py::g"]


def test_failures_are_read_from_the_output_of_pytest() -> None:
    output = "F.\nFAILED tests/a.py::b[c d] - assert 1 - 1 == 2\nERROR tests/c.py\n1 failed, 1 passed, 1 error in 3 s\n"
    assert list_failures(output) == ["tests/a.py::b[c d]", "tests/c.py"]
