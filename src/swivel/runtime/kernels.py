"""Compilation of kernels with numba, and the cache of their machine code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

from swivel.errors import SwivelWarning, first_line

_numba_config: Any = numba.config  # Its attributes are set at run time.
_FunctionCache: Any = FunctionCache
_has_warned = False  # that kernels are not kept


def njit_cached(**options: Any) -> Callable[[Any], Any]:
    """Return the decorator `numba.njit` for kernels whose machine code is kept for the next process.

    `numba.njit(cache=True)` raises an error if no folder is writable, and for any fault of the files there. A kernel
    of this decorator is compiled again instead, with a warning.
    """
    compile_function = numba.njit(**options)

    def decorate(function: Any) -> Any:
        kernel = compile_function(function)
        if not _numba_config.DISABLE_JIT:
            try:
                kernel._cache = _KernelCache(function)
            except RuntimeError:
                _warn_without_cache("no writable folder for them")
        return kernel

    return decorate


class _KernelCache(_FunctionCache):  # type: ignore[misc]
    """The cache of a kernel, whose faults do not stop a command: files of another user, a full disk, damage."""

    def __init__(self, function: Any) -> None:
        # RuntimeError says that no folder is writable. Without a home folder, numba would make one that is named "~".
        try:
            Path.home()
        except RuntimeError:
            os.environ.setdefault("XDG_CACHE_HOME", os.devnull)
        super().__init__(function)

        # A kernel inlines functions of other modules. By itself numba compiles a kernel again only if the kernel's own
        # file changes.
        parts = [value.py_func for value in function.__globals__.values() if hasattr(value, "py_func")]
        files = sorted({Path(part.__code__.co_filename) for part in parts})
        sources = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()]
        self._cache_file._source_stamp = (self._cache_file._source_stamp, sources)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, or None."""
        with self._disable_on_errors():
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code for a signature."""
        with self._disable_on_errors():
            try:
                super().save_overload(sig, data)
            except RuntimeError:
                # numba has no machine code to keep if a signal came while LLVM returned it: Python discards exceptions
                # in such callbacks. The next process compiles the kernel.
                return

    @contextlib.contextmanager
    def _disable_on_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Damaged files raise any class of error, because they are pickles.
            self.disable()
            _warn_without_cache(first_line(error))


def _warn_without_cache(reason: str) -> None:
    """Warn that every process compiles the kernels, once per process."""
    global _has_warned
    if _has_warned:
        return

    # One line per process, not one per kernel.
    _has_warned = True
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}): every command compiles them again, which takes up to a minute; "
        "set NUMBA_CACHE_DIR to a writable folder",
        SwivelWarning,
        stacklevel=1,
    )
