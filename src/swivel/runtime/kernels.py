"""Compilation of kernels with numba, whose machine code is kept for the next process where a folder can be written."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

from swivel.errors import SwivelWarning, first_line


def njit_cached(**options: Any) -> Callable[[Any], Any]:
    """Return the decorator `numba.njit` with these options, for kernels that are compiled once and then cached.

    `numba.njit(cache=True)` raises an error if it finds no folder that it can write, and later for every fault of the
    files there. Kernels of this decorator are compiled in every process instead, with one warning.
    """
    compiler = numba.njit(**options)

    def decorate(function: Any) -> Any:
        kernel = compiler(function)
        if not numba.config.DISABLE_JIT:
            kernel._cache = KernelCache(function)
        return kernel

    return decorate


class KernelCache:
    """The cache of one kernel, with the methods that numba's dispatcher calls; its faults never stop a command."""

    def __init__(self, function: Any) -> None:
        self._cache: Any = None
        try:
            _check_home(function.__code__.co_filename)
            self._cache = FunctionCache(function)
        except (OSError, RuntimeError):  # numba found no folder that it can write
            warn_without_cache("no writable folder for them")

    def __getattr__(self, name: str) -> Any:
        # What numba asks besides, such as `cache_path` for its statistics.
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the machine code for argument types, None if it has to be compiled."""
        return self._attempt("load_overload", signature, context)

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep the machine code for argument types."""
        self._attempt("save_overload", signature, compiled)

    def _attempt(self, method: str, *arguments: Any) -> Any:
        if self._cache is None:
            return None
        try:
            return getattr(self._cache, method)(*arguments)
        except Exception as error:  # The files are pickles: damaged ones raise any kind of error.
            self._cache = None
            warn_without_cache(first_line(error))
            return None


def _check_home(file: str) -> None:
    """Raise OSError where numba would make a folder named "~" in the working directory: nothing says what home is."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() if _has_home() else "")
    if not numba.config.CACHE_DIR and not os.access(Path(file).parent, os.W_OK) and not os.path.isabs(home):
        raise OSError("no home folder")


@functools.cache
def warn_without_cache(reason: str) -> None:
    """Warn that kernels are compiled in every process, once for each reason."""
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}), so every command compiles them again, which takes half a minute; "
        "set NUMBA_CACHE_DIR to a folder that you can write",
        SwivelWarning,
        stacklevel=1,
    )
