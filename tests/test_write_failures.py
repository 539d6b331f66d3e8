"""A file system that fails: at every call in turn, and because it is really full. `make write-failures` is the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swivel.counts import open_matrix
from swivel.errors import StorageError
from swivel.storage.arrays import create_array

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import faults  # noqa: E402

needs_faults = pytest.mark.skipif(faults.why_not() is not None, reason=faults.why_not() or "")

# Writes a folder over a finished one in forks of this process, failing each call in turn; says how each ended.
EACH_CALL = """
import json, os, shutil, sys
from pathlib import Path
import numpy as np
import safetensors.numpy
from faults import FAULTS, Control
from swivel.errors import StorageError
from swivel.counts import open_matrix
from swivel.storage.files import create_folder
from swivel.storage.manifest import open_folder

home = Path(sys.argv[1])
control, target = Control(home / "control"), home / "case" / "new"
target.parent.mkdir()

def write():
    with create_folder(target, "example", overwrite=True) as folder:
        folder.write_array("numbers.npy", np.arange(9))
        folder.write_tensors("tensors.safetensors", {"a": np.ones((2, 2), np.float32)})
        folder.write_lines("words.txt", ["one", "two"])
        folder.finish(config={}, inputs={}, facts={})

def attempt(nth, fault):
    control.arm(home / "case", nth, fault)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write()
            code = 0
        except StorageError as error:
            code = 2 if str(target) in str(error) and os.strerror(fault.error) in str(error) else 3
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    control.disarm()
    return code

attempt(0, None)
log = control.log()
for nth, call in enumerate(log, 1):
    for fault in FAULTS[call.kind]:
        shutil.rmtree(target, ignore_errors=True)
        code = attempt(nth, fault)
        state = "unfinished"
        if (target / "manifest.json").exists():
            open_folder(target, "example").verify()
            state = "whole"
        write()
        open_folder(target, "example").verify()
        print(json.dumps([call.kind, str(fault), code, state, sorted(os.listdir(target))]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """How a folder ended whose n-th call failed, for each call and each way to fail."""
    home = tmp_path_factory.mktemp("faults")
    environment = faults.Control(home / "control").environment(faults.build_library(home))
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(BENCHMARKS)])
    command = [sys.executable, "-c", EACH_CALL, str(home)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_faults
def test_every_kind_of_call_is_made_to_fail(ended: list[list[Any]]) -> None:
    assert {case[0] for case in ended} >= {"open", "write", "sync", "rename", "mkdir", "truncate", "remove"}
    assert len(ended) > 60


@needs_faults
def test_a_failing_call_is_an_error_that_names_the_file_and_the_reason(ended: list[list[Any]]) -> None:
    for kind, fault, code, state, _ in ended:
        harmless = kind in ("remove", "mkdir") or fault == "ENOSPC short"  # mkdir: of a folder that is there
        assert code == 2 or (code == 0 and harmless and state == "whole") or "short, then" in str(fault), (kind, fault)


@needs_faults
def test_a_folder_that_failed_is_written_again_and_nothing_stays_behind(ended: list[list[Any]]) -> None:
    whole = ["manifest.json", "numbers.npy", "tensors.safetensors", "words.txt"]
    for kind, fault, _, _, names in ended:
        left = {name for name in names if not name.endswith(".part") and name != "lock"}
        assert sorted(left) == whole, (kind, fault)
        assert names == whole or kind == "remove" or "lasting" in str(fault), (kind, fault, names)


@needs_faults
@pytest.mark.slow
def test_verbs_end_with_one_line_and_go_on(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "write_failures.py"), "--every", "23", "--name", str(tmp_path / "found")]
    command = [*script, "--only", "add,import,export npy,export swivel,train"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["wrong"] == []
    assert sum(verb["done"] for verb in found["verbs"].values()) >= 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("a disk of its own size takes root to mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_mapped_arrays_on_a_full_disk_are_an_error_not_a_signal(small_disk: Path) -> None:
    with pytest.raises(StorageError, match=r"big\.npy: No space left on device|No space left on device"):
        create_array(small_disk / "big.npy", np.int64, (1 << 20,))
    create_array(small_disk / "small.npy", np.int64, (1 << 10,))[:] = 1


def test_counting_on_a_full_disk_says_so_and_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(f"w{n}" for n in rng.integers(0, 300, 12)) for _ in range(800)))
    command = [sys.executable, "-m", "swivel", "count", str(text), "--threads", "1", "-o"]
    full = subprocess.run([*command, str(small_disk / "out")], capture_output=True, text=True)
    assert full.returncode == 1
    assert re.search(rf"error: {small_disk}\S*: .*(No space left|are free)", full.stderr.splitlines()[-1])
    assert "Traceback" not in full.stderr
    assert [file.name for file in small_disk.rglob("*") if file.is_file()] == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert subprocess.run([*command, str(small_disk / "out")], capture_output=True).returncode == 0
    open_matrix(small_disk / "out").verify()
    assert not list((small_disk / "out").glob("scratch-*"))
