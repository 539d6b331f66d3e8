"""Lists the benchmark results whose measured code has changed since they were made (`make claims`).

A result in `benchmarks/results` names its benchmark and the commit it was made from. The script of the benchmark
declares in `MEASURES` which packages and modules of `swivel`, or which files of the repository, it measures. A result
is out of date if one of them has changed since. Exit status: 0 if all results are current, 1 if any is out of date, 2
if a result cannot be checked because its script or something that the script measures no longer exists.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"


class StaleResultWarning(UserWarning):
    """A benchmark result describes code that has changed since."""


@dataclass(frozen=True, slots=True)
class StaleResult:
    """A result that is out of date, and why."""

    name: str
    commit: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} (commit {self.commit}): {self.reason}"


def find_script(benchmark: str) -> Path:
    """Return the script of a benchmark: `benchmarks/<name>.py`, or the package `<name>` beside it, such as `fuzz`."""
    for script in (BENCHMARKS / f"{benchmark}.py", ROOT / benchmark / "__main__.py"):
        if script.exists():
            return script
    raise FileNotFoundError(f"no script makes the benchmark {benchmark!r}: there is no benchmarks/{benchmark}.py")


def read_measures(script: Path) -> tuple[str, ...]:
    """Return the constant `MEASURES` of a script without importing it."""
    for statement in ast.parse(script.read_text(encoding="utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "MEASURES" for target in targets):
            value = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            return tuple(value)
    raise ValueError(f"{script}: no MEASURES; name the packages of swivel that this benchmark measures")


def find_source(entry: str) -> Path:
    """Return what an entry of `MEASURES` names: a module or package of `swivel`, or a file of the repository."""
    module = ROOT.joinpath("src", *entry.split("."))
    for path in (module, module.with_suffix(".py"), ROOT / entry):
        if path.exists():
            return path
    raise FileNotFoundError(f"MEASURES names {entry!r}, but there is no such module of swivel and no such file")


def digest_source(entry: str) -> str:
    """Return a digest of the files that an entry of `MEASURES` names."""
    source, digest = find_source(entry), hashlib.sha256()

    for file in [source] if source.is_file() else sorted(source.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0")
            digest.update(file.read_bytes())

    return digest.hexdigest()[:16]


def has_history() -> bool:
    """Return whether the repository's own git history can be read here."""
    try:
        found = run_git("rev-parse", "--show-toplevel")
    except OSError:
        return False
    return found is not None and Path(found.strip()).resolve() == ROOT


def run_git(*arguments: str) -> str | None:
    """Return what git prints; None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


@cache
def changed_files(commit: str) -> tuple[Path, ...] | None:
    """Return the files that differ between a commit and the working tree; None if git does not know the commit."""
    differing = run_git("diff", "--name-only", "--no-renames", commit, "--")
    if differing is None:
        return None
    return tuple(ROOT / line for line in (differing + untracked_files()).splitlines())


@cache
def untracked_files() -> str:
    return run_git("ls-files", "--others", "--exclude-standard", "--", "src", "experiments") or ""


def find_changes(data: dict[str, Any]) -> str:
    """Return why a result is out of date, or an empty text.

    The result holds a digest of every source that it measured, which also covers changes that were not committed yet.
    Results from before these digests, and sources that were added to `MEASURES` later, are compared by commit.
    """
    commit, digests = data["machine"]["commit"], data.get("measured", {})
    changed = []

    for entry in read_measures(find_script(data["benchmark"])):
        source = find_source(entry)
        if entry in digests:
            is_changed = digests[entry] != digest_source(entry)
        else:
            files = changed_files(commit)
            if files is None:
                return "git does not know this commit"
            is_changed = any(file.is_relative_to(source) for file in files)
        if is_changed:
            changed.append(entry)

    return f"{', '.join(changed)} changed since" if changed else ""


def read_results() -> dict[str, dict[str, Any]]:
    """Return all results by name: "A" of the file A that holds one result, "A/B" of one that holds several."""
    results = {}
    for file in sorted(RESULTS.glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        entries = {"": data} if "benchmark" in data else data
        results.update({f"{file.stem}/{entry}".rstrip("/"): result for entry, result in entries.items()})
    return results


def check_results() -> tuple[list[StaleResult], list[str]]:
    """Return the results that are out of date, and one line for each result that cannot be checked."""
    stale, errors = [], []

    for name, data in read_results().items():
        try:
            reason = find_changes(data)
        except (KeyError, TypeError) as error:
            errors.append(f"{name}: no {error}")
        except (FileNotFoundError, ValueError) as error:
            errors.append(f"{name}: {error}")
        else:
            if reason:
                stale.append(StaleResult(name, str(data["machine"]["commit"]), reason))

    return stale, errors


def main() -> int:
    stale, errors = check_results()
    for result in stale:
        print(result)
    for line in errors:
        print(line, file=sys.stderr)

    if errors:
        return 2
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
