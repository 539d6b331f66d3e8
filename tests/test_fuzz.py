"""Hostile input, in short: every target's good inputs and damaged ones of them; `make fuzz` is the long version.

The fuzzer itself is tested, too: that it notices what a reader must not do.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `fuzz` is beside the package, not in it

from fuzz.guard import SPLIT, Target, execute, minimize, option, parts, warm_up  # noqa: E402
from fuzz.running import Job, Tally, gather_findings, run_job, share_out  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402
from swivel.errors import StorageError  # noqa: E402

INPUTS = 40


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few changes: replaced, put in, left out, cut."""
    for _ in range(rng.randint(1, 4)):
        place, length, kind = rng.randrange(len(data) + 1), rng.randint(1, 8), rng.randrange(4)
        if kind == 3:
            data = data[:place]
        else:
            new = b"" if kind == 2 else rng.randbytes(length) if rng.random() < 0.7 else rng.choice((b"nan", b"9" * 30))
            data = data[:place] + new + data[place + (0 if kind == 1 else length) :]
    return data


def is_read(target: Target, data: bytes, folder: Path) -> bool:
    try:
        target.read(data, folder)
    except Exception:
        return False
    return True


@pytest.mark.filterwarnings("ignore::swivel.errors.SwivelWarning")  # A warning is no error.
@pytest.mark.parametrize("name", TARGETS)
def test_whatever_the_bytes_a_value_or_one_clear_error(name: str, tmp_path: Path) -> None:
    target, rng = TARGETS[name], random.Random(1)
    seeds = warm_up(target, tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    inputs = INPUTS if target.share >= 100 else INPUTS // 4  # Slow ones have a small share.
    for data in [*seeds, b"", *(damage(rng.choice(seeds), rng) for _ in range(inputs))]:
        found = execute(target, data, folder)
        assert found is None, f"{data!r}\n{found.report}"
    assert any(is_read(target, seed, folder) for seed in seeds)  # What is always refused tests nothing behind that.


def raise_error(error: BaseException) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (raise_error(ValueError("x")), "ValueError"),
        (raise_error(MemoryError()), "MemoryError"),
        (raise_error(StorageError("a file of no name is wrong")), "no file named"),
        (raise_error(StorageError("")), "no text"),
        (raise_error(StorageError("one\ntwo")), "several lines"),
        (lambda data, folder: Path(__file__).with_name("README").open(), "Forbidden"),
        (lambda data, folder: (folder / ".." / "beside").write_bytes(b"x"), "Forbidden"),
        (lambda data, folder: (folder.parent / "beside").mkdir(), "Forbidden"),
        (lambda data, folder: pickle.loads(data), "Forbidden"),
        (lambda data, folder: swallow(folder), "Forbidden"),
    ],
)
def test_what_no_reader_may_do_is_noticed(read: Callable[[bytes, Path], None], wrong: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    found = execute(Target("t", read, lambda _: [], 1), pickle.dumps(Path), tmp_path / "in")
    assert found is not None
    assert wrong in found.signature
    assert not (tmp_path / "beside").exists()


def swallow(folder: Path) -> None:
    """Do what is forbidden, and catch too much."""
    try:
        (folder.parent / "beside").write_bytes(b"x")
    except Exception:
        return


def test_what_a_reader_may_do_is_no_finding(tmp_path: Path) -> None:
    def read(data: bytes, folder: Path) -> None:
        (folder / "scratch").write_bytes(data)
        assert (folder / "scratch").read_bytes() == data
        (folder / "scratch").unlink()
        raise StorageError(f"{folder}/x: damaged")

    assert execute(Target("t", read, lambda _: [], 1), b"data", tmp_path) is None


def test_findings_are_shortened_to_what_matters(tmp_path: Path) -> None:
    def read(data: bytes, folder: Path) -> None:
        if b"ab" in data and b"z" in data:
            raise ValueError

    target = Target("t", read, lambda _: [], 1)
    assert minimize(target, b"12345ab67890" * 3 + b"yyyzyyy", tmp_path) == b"abz"


def test_inputs_of_several_files_are_taken_apart() -> None:
    assert parts(b"a" + SPLIT + b"b", 3) == [b"a", b"b", b""]
    assert parts(SPLIT.join([b"a", b"b", b"c"]), 2) == [b"a", b"b" + SPLIT + b"c"]
    assert option(b"\x07rest", 3) == (1, b"rest")
    assert option(b"", 3) == (0, b"")


def test_all_executions_are_shared_out_and_every_target_has_its_part() -> None:
    jobs = share_out(TARGETS.values(), 10_000_000, 1)
    assert sum(job.runs for job in jobs) >= 10_000_000
    assert {job.target.name for job in jobs} == set(TARGETS)
    assert [job.target.name for job in jobs[: len(TARGETS)]] == list(TARGETS)
    assert len({(job.target.name, job.seed) for job in jobs}) == len(jobs)


def test_a_process_of_the_fuzzer_says_what_it_did(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    tally = Tally("memory")
    run_job(Job(TARGETS["memory"], 3_000, 1), tmp_path, tally)
    gather_findings(tmp_path, tally)
    assert not tally.ends
    assert not tally.findings
    assert tally.executions >= 3_000
    assert tally.coverage >= (tally.coverage_before or 0) > 0
    assert len(list((tmp_path / "memory" / "corpus").iterdir())) > 4
