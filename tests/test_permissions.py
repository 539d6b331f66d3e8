"""Files and folders that may not be read or written: every verb ends with one line that names the file."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import swivel
from swivel.cli import main
from swivel.errors import SwivelError
from swivel.storage.files import create_folder

LINES = ["the king and the queen", "a man and a woman", "the king is a man", "the queen is a woman"] * 5
_VERSION = 0x20080522  # of the structures of capget and capset
_READ_AND_WRITE_ALL = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission bits")


@pytest.fixture
def plain_user() -> Iterator[None]:
    """Permissions count also for root, whose right to read and write everything is taken away meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may read and write everything")

    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # of this thread
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    all_rights = data[0]
    data[0] &= ~_READ_AND_WRITE_ALL  # the rights in effect
    assert libc.capset(header, data) == 0
    yield
    data[0] = all_rights
    assert libc.capset(header, data) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, counts and the result of a run."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    (folder / "counts.tsv").write_text("king\tqueen\t2\nqueen\tking\t2\n")
    swivel.run(folder / "text.txt", folder / "work", dim=4, epochs=2, min_count=1, backend="cpu", dtype="float32")
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of what was made, whose folders can be removed after the test, whatever their permissions."""
    for name in ("text.txt", "counts.tsv"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    for part in ("matrix", "vectors"):
        (tmp_path / part).mkdir()
        for file in (made / "work" / part).iterdir():
            (tmp_path / part / file.name).write_bytes(file.read_bytes())
    yield tmp_path
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o700)


Ends = Callable[[str], tuple[int, list[str]]]


@pytest.fixture
def end(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """Run a command in the folder, and return its status and the last line that it prints."""
    monkeypatch.chdir(home)

    def run(command: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["swivel", *command.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err.splitlines()

    return run


READING = [
    ("text.txt", "count text.txt -o out"),
    ("text.txt", "run text.txt -o out"),
    ("text.txt", "extend vectors text.txt -o out"),
    ("text.txt", "count counts.tsv --vocabulary text.txt -o out"),
    ("text.txt", "evaluate vectors --data text.txt"),
    ("counts.tsv", "import counts.tsv -o out"),
    ("matrix/counts.npy", "train matrix -o out --dim 4 --epochs 1"),
    ("matrix/rows.txt", "add matrix matrix -o out"),
    ("matrix/manifest.json", "info matrix"),
    ("vectors/vectors.safetensors", "nearest vectors king"),
    ("vectors/rows.txt", "export vectors out.txt"),
    ("vectors/row_sums.npy", "compare vectors vectors"),
    ("vectors/manifest.json", "plot epochs vectors -o out.png"),
    ("vectors", "analogy vectors king queen man"),
    ("matrix", "info matrix"),
]


@pytest.mark.parametrize(
    ("name", "command"), READING, ids=[f"{command.split()[0]} {name}" for name, command in READING]
)
def test_what_may_not_be_read_is_named_in_one_line(
    home: Path, end: Ends, plain_user: None, name: str, command: str
) -> None:
    (home / name).chmod(0)
    status, lines = end(command)
    assert status in (1, 2)
    assert lines[-1].startswith("error: ")
    assert lines[-1].endswith(": Permission denied")
    assert name in lines[-1]
    assert "Traceback" not in str(lines)
    assert not (home / "out").exists()


WRITING = [
    "count text.txt -o closed/out",
    "run text.txt -o closed/out",
    "import counts.tsv -o closed/out",
    "add matrix matrix -o closed/out",
    "train matrix -o closed/out --dim 4 --epochs 1",
    "extend vectors text.txt -o closed/out",
    "demo -o closed/out",
    "compare vectors vectors --min-count 1 -o closed/out.tsv",
    "plot epochs vectors -o closed/out.png",
    "export vectors closed/out.txt",
    "export vectors closed/out.npy",
    "export vectors closed/out --format projector",
    "export vectors closed/out --format swivel",
]


@pytest.mark.parametrize("command", WRITING)
def test_what_may_not_be_written_is_named_in_one_line(home: Path, end: Ends, plain_user: None, command: str) -> None:
    (home / "closed").mkdir(mode=0o500)
    status, lines = end(command)
    assert (status, lines[-1].rpartition(": ")[2]) == (1, "Permission denied")
    assert lines[-1].startswith("error: closed/out")
    assert "Traceback" not in str(lines)
    assert not list((home / "closed").iterdir())


def test_a_finished_folder_of_another_user_may_be_read_and_is_not_swept(home: Path, plain_user: None) -> None:
    (home / "vectors" / "lock").write_text('{"pid": 1}')
    (home / "vectors").chmod(0o500)
    assert len(swivel.load(home / "vectors")) == 8
    with pytest.raises(SwivelError, match=r"vectors.*Permission denied"), create_folder(home / "vectors" / "x", "test"):
        pass
    assert (home / "vectors" / "lock").exists()
