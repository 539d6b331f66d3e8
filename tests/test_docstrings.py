"""Every example in a docstring of the package and of the experiments runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import swivel

PACKAGES = (Path(swivel.__file__).parent, Path(__file__).parent.parent / "experiments")


def find_modules_with_examples() -> list[str]:
    """Return the names of the modules and packages whose source contains an example, without importing them."""
    names = []
    for package in PACKAGES:
        files = [file for file in sorted(package.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8")]
        names += [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", find_modules_with_examples())
def test_examples_of_docstrings_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    output: list[str] = []
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=output.append)
    assert runner.failures == 0, "".join(output)
