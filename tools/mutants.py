"""Plant faults in the code and show which ones the tests notice: `make mutants`.

`mutants.toml` lists the faults: a text of a source file, the text that replaces it, and the tests that should fail
then. They are planted in copies of the checkout, which is not changed itself. A fault that makes its tests hang counts
as noticed. The last line is JSON. Exit status: 0 if all faults are noticed, 1 if some survive, 2 if a fault does not
fit the code any more or a test fails without any fault.

    python tools/mutants.py [--processes N] [--list] [ID ...]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
FAULTS = Path(__file__).with_name("mutants.toml")
PACKAGE = "src/swivel"
COPIED = ("src", "tests")  # everything else that is not hidden is linked
NOT_NEEDED = {"work", "build", "dist"}
TIMEOUT_SECONDS = 300  # for the tests of a fault
CHECK_SECONDS = 3600  # for all tests without a fault
# Results of pytest that say nothing about a fault: it was used wrongly, or found no test.
NOT_TESTED = (4, 5)


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of a file of the package that tests should notice."""

    id: str
    file: str  # below PACKAGE
    old: str  # occurs exactly once in the file
    new: str
    tests: tuple[str, ...]  # files, or tests in the form of pytest

    def find_problem(self, root: Path) -> str:
        """Return why the fault does not fit the files below `root`, or an empty text."""
        source = root / PACKAGE / self.file
        if not source.is_file():
            return f"no file {self.file}"
        text = source.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            return f"the old text occurs {text.count(self.old)} times in {self.file}"
        return next((f"no test {test}" for test in self.tests if not _exists(root, test)), "")

    def plant(self, text: str) -> str:
        """Return the text of the file with the fault; raise SyntaxError if that is not Python: any test would fail."""
        changed = text.replace(self.old, self.new)
        ast.parse(changed)
        return changed


def _exists(root: Path, test: str) -> bool:
    """Return whether there is a test file, or a function of it."""
    file, _, name = test.partition("::")
    function = name.partition("[")[0]  # without the parameters
    path = root / file
    return path.is_file() and (not function or f"def {function}(" in path.read_text(encoding="utf-8"))


def read_faults(file: Path = FAULTS) -> list[Fault]:
    """Return the faults of a file."""
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests of a fault ended."""

    fault: Fault
    kind: str  # noticed, survived or stale
    reason: str  # the first test that failed, or why the fault is stale
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind:8} {self.fault.id:36} {self.seconds:5.1f} s  {self.reason}".rstrip()


@dataclass(slots=True)
class Checkout:
    """A copy of the checkout in which tests run, one process at a time."""

    folder: Path
    deselected: list[str] = field(default_factory=list)  # tests that fail without a fault
    _process: subprocess.Popen[str] | None = None

    @property
    def root(self) -> Path:
        """The copy."""
        return self.folder / "checkout"

    @property
    def _kernels(self) -> Path:
        """The folder of kernels that were compiled without a fault."""
        return self.folder / "kernels"

    def copy_from(self, original: Path) -> None:
        """Copy what faults change, and link the rest."""
        self.root.mkdir(parents=True)
        self._kernels.mkdir()
        for entry in original.iterdir():
            if entry.name in COPIED:
                shutil.copytree(entry, self.root / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif not entry.name.startswith(".") and entry.name not in NOT_NEEDED:
                (self.root / entry.name).symlink_to(entry.resolve())

    def check_import(self) -> None:
        """Raise RuntimeError unless tests import the package of the copy and not an installed one."""
        command = [sys.executable, "-c", "import swivel; print(swivel.__file__)"]
        ended = subprocess.run(command, cwd=self.root, env=self._environment(), capture_output=True, text=True)
        if not ended.stdout.startswith(str(self.root)):
            raise RuntimeError(f"the tests would import {ended.stdout or ended.stderr}")

    def _environment(self, kernels: Path | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "NUMBA_CACHE_DIR": str(kernels or self._kernels),
            "OMP_WAIT_POLICY": "passive",  # as `make test` sets it
        }

    def run(self, tests: Sequence[str], *options: str, kernels: Path | None = None, seconds: float) -> tuple[int, str]:
        """Run tests and return the exit status and the output of pytest; raise TimeoutExpired if it takes too long."""
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *options]
        command += ["--hypothesis-seed=1", "--tb=line", f"--basetemp={self.folder / 'temporary'}"]
        command += [f"--deselect={test}" for test in self.deselected]
        process = self._process = subprocess.Popen(
            [*command, *tests],
            cwd=self.root,
            env=self._environment(kernels),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        finally:
            self.stop()

    def stop(self) -> None:
        """End the tests that run, with the processes that they have started."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None

    def try_fault(self, fault: Fault) -> Outcome:
        """Plant a fault, run its tests, and take it out again."""
        problem = fault.find_problem(self.root)
        if problem:
            return Outcome(fault, "stale", problem)

        started = time.monotonic()
        try:
            changed = fault.plant((self.root / PACKAGE / fault.file).read_text(encoding="utf-8"))
        except SyntaxError as error:
            return Outcome(fault, "stale", f"the new text is not Python: {error}")
        with self._planted(fault, changed), self._kernels_for(fault) as kernels:
            try:
                status, output = self.run(fault.tests, "-x", kernels=kernels, seconds=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                status, output = -signal.SIGKILL, ""
        seconds = time.monotonic() - started

        if status in NOT_TESTED:
            return Outcome(fault, "stale", f"no test was run (pytest: status {status})", seconds)
        if status == 0:
            return Outcome(fault, "survived", ", ".join(fault.tests), seconds)
        reasons = [*list_failures(output), f"status {status}" if output else "timeout"]
        return Outcome(fault, "noticed", reasons[0], seconds)

    @contextlib.contextmanager
    def _planted(self, fault: Fault, changed: str) -> Iterator[None]:
        """Change the file of a fault to another text while the block runs."""
        source = self.root / PACKAGE / fault.file
        original = source.read_bytes()
        times = source.stat()
        try:
            source.write_text(changed, encoding="utf-8")
            yield
        finally:
            source.write_bytes(original)
            # Python and numba recognize what they compiled by the time of the file.
            os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))

    @contextlib.contextmanager
    def _kernels_for(self, fault: Fault) -> Iterator[Path]:
        """Yield the folder of compiled kernels, or a copy without those that the fault may change."""
        changed = list(find_kernels(self.root / "src", self.root / PACKAGE / fault.file))
        if not changed:
            yield self._kernels
            return

        copied = self.folder / "kernels-of-a-fault"
        shutil.copytree(self._kernels, copied)
        try:
            for module in changed:  # numba: <folder>_<hash>/<module>.<function>-<line>...
                for file in copied.glob(f"{module.parent.name}_*/{module.stem}.*"):
                    file.unlink()
            yield copied
        finally:
            shutil.rmtree(copied)


def find_kernels(source: Path, file: Path) -> Iterator[Path]:
    """Yield the modules below `source` whose compiled functions have code or constants of a file: itself, or importers.

    A constant has the value that it had at compilation, wherever it comes from.
    """
    name = ".".join(file.relative_to(source).with_suffix("").parts)
    for module in sorted(source.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        if "njit" in text and (module == file or name in _list_imports(text)):
            yield module


def _list_imports(text: str) -> set[str]:
    """Return the full names of all modules, and of what is imported from them, in a source text."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def list_failures(output: str) -> list[str]:
    """Return the tests that failed, from the output of pytest.

    >>> list_failures("FAILED tests/test_a.py::test_b[x y] - assert 1 == 2\\n1 failed")
    ['tests/test_a.py::test_b[x y]']
    """
    return re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)


def list_tests(faults: Iterable[Fault]) -> list[str]:
    """Return the tests of all faults, each once: functions of a file that is among them are left out."""
    tests = {test for fault in faults for test in fault.tests}
    return sorted(test for test in tests if test.partition("::")[0] not in tests - {test})


@contextlib.contextmanager
def open_pool(checkouts: Sequence[Checkout]) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool with a thread for each copy; if the block fails, the tests that run are ended."""
    with ThreadPoolExecutor(len(checkouts)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for checkout in checkouts:
                checkout.stop()
            raise


def find_failing(checkouts: Sequence[Checkout], tests: Sequence[str]) -> list[str]:
    """Return the tests that fail without a fault; compile kernels for the tests of faults on the way."""

    def run_part(number: int) -> list[str]:
        part = tests[number :: len(checkouts)]
        status, output = checkouts[number].run(part, seconds=CHECK_SECONDS) if part else (0, "")
        failures = list_failures(output)
        if status != 0 and not failures:
            raise RuntimeError(f"the tests cannot be run (pytest: status {status}):\n{output[-4000:]}")
        return failures

    with open_pool(checkouts) as pool:
        return [test for failures in pool.map(run_part, range(len(checkouts))) for test in failures]


def try_faults(checkouts: Sequence[Checkout], faults: Sequence[Fault]) -> Iterator[Outcome]:
    """Yield the outcome of each fault as soon as it is known."""
    free: SimpleQueue[Checkout] = SimpleQueue()
    for checkout in checkouts:
        free.put(checkout)

    def try_fault(fault: Fault) -> Outcome:
        checkout = free.get()
        try:
            return checkout.try_fault(fault)
        finally:
            free.put(checkout)

    with open_pool(checkouts) as pool:
        for future in as_completed([pool.submit(try_fault, fault) for fault in faults]):
            yield future.result()


def run_faults(faults: Sequence[Fault], processes: int) -> int:
    """Try faults, print the outcomes, and return the exit status."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as parent:
        checkouts = [Checkout(Path(parent) / str(number)) for number in range(processes)]
        checkouts[0].copy_from(ROOT)
        for checkout in checkouts[1:]:  # of the copy, because the checkout may change meanwhile
            checkout.copy_from(checkouts[0].root)
        for checkout in checkouts:
            checkout.check_import()

        fitting = [fault for fault in faults if not fault.find_problem(checkouts[0].root)]
        failing = find_failing(checkouts, list_tests(fitting))
        for test in failing:
            print(f"fails without a fault: {test}", flush=True)
        for checkout in checkouts:
            checkout.deselected = failing
        print(f"without a fault: {time.monotonic() - started:.0f} s", flush=True)

        outcomes = []
        for outcome in try_faults(checkouts, faults):
            print(outcome, flush=True)
            outcomes.append(outcome)

    survivors = [outcome.fault.id for outcome in outcomes if outcome.kind == "survived"]
    stale = [outcome.fault.id for outcome in outcomes if outcome.kind == "stale"]
    result = {
        "faults": len(faults),
        "noticed": len(faults) - len(survivors) - len(stale),
        "survivors": survivors,
        "stale": stale,
        "failing": failing,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(result))
    if stale or failing:
        return 2
    return int(bool(survivors))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="faults to plant; by default all")
    parser.add_argument("--processes", type=int, default=2, help="faults at a time, each in a copy of its own")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests")
    given = parser.parse_args()

    faults = {fault.id: fault for fault in read_faults()}
    unknown = set(given.ids) - set(faults)
    if unknown:
        parser.error(f"no fault {', '.join(sorted(unknown))}; --list prints all")
    chosen = [faults[name] for name in given.ids or faults]
    if given.list:
        for fault in chosen:
            print(f"{fault.id:36} {fault.file:44} {' '.join(fault.tests)}")
        return 0
    return run_faults(chosen, max(1, min(given.processes, len(chosen))))


if __name__ == "__main__":
    sys.exit(main())
