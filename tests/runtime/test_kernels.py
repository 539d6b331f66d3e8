"""Compiled kernels and their cache: no folder for it, and files that cannot be read or written."""

from __future__ import annotations

import errno
import importlib.util
import pwd
import warnings
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.caching import FunctionCache
from numba.core.codegen import CodeLibrary

import swivel
from swivel.errors import SwivelWarning
from swivel.runtime import kernels

SOURCE = """
from swivel.runtime.kernels import njit_cached

@njit_cached(nogil=True)
def increase(number):
    return number + 1

@njit_cached()
def double(number):
    return 2 * number
"""

SETTINGS: Any = numba.config  # Its attributes are set at run time.


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_has_warned", False)


def test_only_the_first_reason_is_a_warning() -> None:
    with pytest.warns(SwivelWarning, match="no writable folder"):
        kernels._warn_without_cache("no writable folder")
    kernels._warn_without_cache("a damaged file")  # Another warning would be an error.


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with two kernels, in an installation where numba finds no folder to write, not even as root."""
    file = tmp_path / "installation" / "kernels_of_a_test.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    (file.parent / "__pycache__").write_text("a file, so that nothing can be written into it")
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr(SETTINGS, "CACHE_DIR", "")
    return file


def load(source: Path) -> Any:
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_run_without_a_place_for_them_and_say_so_once(source: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = load(source)
        assert (module.increase(1), module.double(3)) == (2, 6)

    (warning,) = caught
    assert warning.category is SwivelWarning
    assert "no writable folder" in str(warning.message)
    assert "set NUMBA_CACHE_DIR" in str(warning.message)


def test_kernels_are_kept_in_the_folder_that_is_named(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(SETTINGS, "CACHE_DIR", str(tmp_path / "cache"))
    assert load(source).increase(1) == 2
    assert len(list(tmp_path.glob("cache/*/*.nbc"))) == 1
    again = load(source)
    assert again.increase(1) == 2
    assert again.increase.stats.cache_hits


@pytest.mark.parametrize("is_folder_named", [False, True])
def test_a_user_without_a_home_gets_no_folder_named_like_it(
    source: Path, tmp_path: Path, monkeypatch: Any, is_folder_named: bool
) -> None:
    if is_folder_named:  # but not one that can be written
        monkeypatch.setattr(SETTINGS, "CACHE_DIR", str(source))

    def fail(user: int) -> None:
        raise KeyError(user)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", fail)
    with pytest.warns(SwivelWarning, match="no writable folder"):
        assert load(source).increase(1) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["installation"]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_files_are_compiled_again(source: Path, tmp_path: Path, monkeypatch: Any, ending: str) -> None:
    monkeypatch.setattr(SETTINGS, "CACHE_DIR", str(tmp_path / "cache"))
    assert load(source).increase(1) == 2
    for file in tmp_path.glob(f"cache/*/*.{ending}"):
        file.write_bytes(b"\x00odd")
    with pytest.warns(SwivelWarning, match="compiled kernels cannot be kept"):
        assert load(source).increase(1) == 2


def test_a_full_disk_is_no_reason_to_stop(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SETTINGS, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(FunctionCache, "save_overload", fail)
    with pytest.warns(SwivelWarning, match="No space left on device"):
        assert load(source).increase(1) == 2


def test_a_signal_during_compilation_is_no_fault_of_the_cache(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Ctrl-C in LLVM's callback leaves numba without machine code to keep; "cannot be kept" would be wrong."""

    def raise_error(library: Any) -> None:
        raise RuntimeError(f"no compiled object yet for {library}")

    monkeypatch.setattr(SETTINGS, "CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(CodeLibrary, "_get_compiled_object", raise_error)
        assert load(source).increase(1) == 2  # A warning would be an error.
    assert load(source).increase(1) == 2
    again = load(source)
    assert again.increase(1) == 2
    assert again.increase.stats.cache_hits


def test_no_kernel_of_ours_demands_a_cache() -> None:
    lines = [
        line for file in Path(swivel.__file__).parent.rglob("*.py") for line in file.read_text("utf-8").split("\n")
    ]
    assert not [line for line in lines if "cache=True" in line and "`" not in line]
