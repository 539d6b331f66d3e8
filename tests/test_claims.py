"""Results of benchmarks name code that has changed since: listed as a warning here, and by `make claims`."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import claims
import pytest
from claims import StaleResultWarning, check_results


@pytest.mark.skipif(not claims.has_history(), reason="no git history here")
@pytest.mark.filterwarnings("always::claims.StaleResultWarning")
def test_every_result_can_be_checked() -> None:
    stale, errors = check_results()
    if stale:
        warnings.warn(f"{len(stale)} results are older than the code; `make claims` lists them", StaleResultWarning, 1)
    assert errors == []


class Repository:
    """A repository of one module, one benchmark of it and one result."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.module = root / "src" / "swivel" / "counts" / "cooccurrence" / "count.py"
        self.result = root / "benchmarks" / "results" / "speed.json"
        for folder in (self.module.parent, self.result.parent):
            folder.mkdir(parents=True)
        self.module.write_text("FAST = True\n")
        (root / "benchmarks" / "speed.py").write_text('MEASURES = ("swivel.counts.cooccurrence",)\n')
        self.git("init", "--quiet")
        self.commit = self.save()

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout

    def save(self) -> str:
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "change")
        return self.git("rev-parse", "--short", "HEAD").strip()

    def write_result(self, commit: str, benchmark: str = "speed", **more: object) -> None:
        self.result.write_text(json.dumps({"benchmark": benchmark, "machine": {"commit": commit}, **more}))

    def check(self) -> tuple[list[str], list[str]]:
        """Return the reasons for which results are out of date, and the errors."""
        claims.changed_files.cache_clear()
        claims.untracked_files.cache_clear()
        stale, errors = check_results()
        return [result.reason for result in stale], errors


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    if not claims.has_history():
        pytest.skip("no git here")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(claims, "BENCHMARKS", tmp_path / "benchmarks")
    monkeypatch.setattr(claims, "RESULTS", tmp_path / "benchmarks" / "results")
    yield Repository(tmp_path)
    claims.changed_files.cache_clear()
    claims.untracked_files.cache_clear()


def test_a_result_of_unchanged_code_is_current(repository: Repository) -> None:
    repository.write_result(repository.commit)
    (repository.root / "README.md").write_text("Something else.\n")
    repository.save()
    assert repository.check() == ([], [])


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_result_of_changed_code_is_out_of_date(repository: Repository, is_committed: bool) -> None:
    repository.write_result(repository.commit)
    repository.module.write_text("FAST = False\n")
    if is_committed:
        repository.save()
    assert repository.check() == (["swivel.counts.cooccurrence changed since"], [])


def test_a_new_file_in_a_measured_package_makes_a_result_out_of_date(repository: Repository) -> None:
    repository.write_result(repository.commit)
    repository.module.with_name("kernels.py").write_text("")
    assert repository.check() == (["swivel.counts.cooccurrence changed since"], [])


def test_a_result_of_an_unknown_commit_is_out_of_date(repository: Repository) -> None:
    repository.write_result("abcdef0")
    assert repository.check() == (["git does not know this commit"], [])


def test_a_digest_tells_more_than_the_commit(repository: Repository) -> None:
    repository.module.write_text("FAST = 'as measured before the commit'\n")
    repository.write_result(
        repository.commit, measured={"swivel.counts.cooccurrence": claims.digest_source("swivel.counts.cooccurrence")}
    )
    repository.save()
    assert repository.check() == ([], [])
    repository.module.write_text("FAST = False\n")
    assert repository.check() == (["swivel.counts.cooccurrence changed since"], [])


def test_a_result_that_no_script_makes_is_an_error(repository: Repository) -> None:
    repository.write_result(repository.commit, benchmark="gone")
    stale, errors = repository.check()
    assert stale == []
    assert "no script makes the benchmark 'gone'" in errors[0]


def test_a_module_that_is_gone_is_an_error(repository: Repository) -> None:
    repository.write_result(repository.commit)
    repository.module.unlink()
    repository.module.parent.rmdir()
    stale, errors = repository.check()
    assert stale == []
    assert "there is no such module of swivel" in errors[0]


def test_the_exit_status_says_what_was_found(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.write_result(repository.commit)
    assert claims.main() == 0
    repository.write_result("abcdef0")
    assert claims.main() == 1
    assert capsys.readouterr().out == "speed (commit abcdef0): git does not know this commit\n"
    repository.write_result(repository.commit, benchmark="gone")
    assert claims.main() == 2
