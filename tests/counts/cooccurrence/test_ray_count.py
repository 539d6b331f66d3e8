"""Counting on a real Ray cluster of two nodes: the same files as on one machine, even if a node is lost."""

from __future__ import annotations

import gzip
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from ray_cluster import TwoNodes
from swivel import RunOptions
from swivel.cli import cli
from swivel.config import CorpusConfig
from swivel.corpus.streams import FileRange
from swivel.counts import block_layout as matrix_layout
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence import cluster_count as counting
from swivel.counts.cooccurrence.cluster_count import cut_groups
from swivel.errors import ClusterError, ConfigError, CorpusError, CountsError, MemoryBudgetError, VocabularyError
from swivel.runtime import ray as connecting
from swivel.runtime.progress import Progress

pytestmark = pytest.mark.xdist_group("ray")
WORDS = 70


@pytest.fixture(scope="module")
def address(two_nodes: TwoNodes) -> Iterator[str]:
    """Address of the cluster; the connection stays open, so that its worker processes are reused."""
    with connecting.connect(two_nodes.address):
        yield two_nodes.address


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small corpora into many pieces and small matrices into many blocks; tasks receive both as arguments."""
    monkeypatch.setattr(counting, "MIN_PIECE_BYTES", 3_000)
    monkeypatch.setattr(matrix_layout, "BLOCK_SIZE", 16)


def write_lines(file: Path, lines: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, WORDS + 1)
    ends = ["\n", "\n", "\n", ". ", "\n\n", "\r\n\r\n"]

    with file.open("wb") as out:
        for _ in range(lines):
            words = rng.choice(WORDS, rng.integers(0, 12), p=weights / weights.sum())
            out.write((" ".join(f"wörd{word}" for word in words) + ends[rng.integers(len(ends))]).encode())

    return file


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("text") / "a.txt", 900, 1)


def read_folder(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def assert_same(folder: Path, other: Path) -> None:
    """Compare the names and bytes of all files of two folders, and the manifests but for the age of the sources."""
    one, two = read_folder(folder), read_folder(other)
    manifests = [json.loads(files.pop("manifest.json")) for files in (one, two)]
    for manifest in manifests:
        del manifest["checksum"], manifest["facts"]["sources"]  # Files that have just changed are not recorded.
    assert manifests[0] == manifests[1]
    assert one == two


class Watcher(Progress):
    """Progress that calls `call` when the first piece of a job has finished."""

    def __init__(self, job: str, call: Callable[[], None]) -> None:
        self.job = job
        self.call = call
        self.messages: list[str] = []
        self.notes: list[str] = []

    def begin(self, job: str, total: float | None, unit: str) -> Any:
        return _Watched(self, job)

    def message(self, text: str) -> None:
        self.messages.append(text)


class _Watched:
    def __init__(self, watcher: Watcher, job: str) -> None:
        self.watcher = watcher
        self.job = job

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.watcher.notes.append(f"{self.job}: {note}")
        if self.job == self.watcher.job:
            self.watcher.job = ""
            self.watcher.call()


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": "default", "window": 3},
        {"recipe": "fast", "unit": "sentence", "min_count": 3, "max_size": 50},
        {"recipe": "fast", "unit": "document", "window": 12, "oov": "gap", "min_count": 30},
        {"recipe": "paper", "left": 4, "right": 0, "weight": "linear"},
    ],
    ids=["bands", "sentences", "documents with gaps", "one side"],
)
def test_a_cluster_counts_what_one_machine_counts(
    settings: dict[str, Any], text: Path, tmp_path: Path, address: str
) -> None:
    alone = swivel.count(text, tmp_path / "alone", **settings)
    watcher = Watcher("", lambda: None)
    many = swivel.count(text, tmp_path / "many", options=RunOptions(ray=address, progress=watcher), **settings)
    assert_same(tmp_path / "alone", tmp_path / "many")
    assert many.fingerprint == alone.fingerprint
    assert re.match(r"counting on \d+ cores of \d+ nodes; .* per task", watcher.messages[0])
    assert sum(note.startswith("counting: ") for note in watcher.notes) > 8
    assert sum(note.startswith("merging: ") for note in watcher.notes) > 1


def test_a_vocabulary_list_is_used(text: Path, tmp_path: Path, address: str) -> None:
    listed = ["wörd5", "nowhere", "wörd3", "wörd60"]
    swivel.count(text, tmp_path / "alone", vocabulary=listed)
    swivel.count(text, tmp_path / "many", vocabulary=listed, options=RunOptions(ray=address))
    assert_same(tmp_path / "alone", tmp_path / "many")


@pytest.mark.parametrize("settings", [{}, {"unit": "sentence", "oov": "gap", "min_count": 3}])
def test_listed_phrases_are_joined(settings: dict[str, Any], text: Path, tmp_path: Path, address: str) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "list.txt").write_text("wörd0 wörd1\nwörd0_wörd1_wörd2\nWörd3 wörd0\nnowhere wörd0\n")
    texts = [tmp_path / "empty.txt", text]
    phrases = str(tmp_path / "list.txt")
    alone = swivel.count(texts, tmp_path / "alone", phrases=phrases, **settings)
    swivel.count(texts, tmp_path / "many", phrases=phrases, options=RunOptions(ray=address), **settings)
    assert {"wörd0_wörd1", "wörd0_wörd1_wörd2", "wörd3_wörd0"} <= set(alone.rows)
    assert_same(tmp_path / "alone", tmp_path / "many")


def test_many_small_files_and_packed_ones_are_counted(tmp_path: Path, address: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(60):
        write_lines(folder / f"{number:02}.txt", 10, number)

    (folder / "empty.txt").write_bytes(b"")
    (folder / "packed.txt.gz").write_bytes(gzip.compress(write_lines(tmp_path / "more.txt", 300, 7).read_bytes()))
    (folder / "marked.txt").write_bytes(
        b"\xef\xbb\xbfw\xc3\xb6rd1 w\xc3\xb6rd2\n\xef\xbb\xbfw\xc3\xb6rd3 w\xc3\xb6rd4\n" * 200
    )
    swivel.count(folder, tmp_path / "alone")
    watcher = Watcher("", lambda: None)
    swivel.count(folder, tmp_path / "many", options=RunOptions(ray=address, progress=watcher))
    assert_same(tmp_path / "alone", tmp_path / "many")
    assert "63 files" in watcher.messages[1]
    assert sum(note.startswith("counting: ") for note in watcher.notes) < 30  # small files are counted together


def test_a_line_longer_than_a_piece_stays_whole(tmp_path: Path, address: str) -> None:
    file = tmp_path / "long.txt"
    file.write_text("\n".join(["a b c", "d e f g " * 4_000, "a d", "b e " * 3_000]))
    swivel.count(file, tmp_path / "alone")
    swivel.count(file, tmp_path / "many", options=RunOptions(ray=address))
    assert_same(tmp_path / "alone", tmp_path / "many")


def test_another_encoding_is_counted(tmp_path: Path, address: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text("ein wörd und öl\n" * 500, encoding="utf-16")
    swivel.count(file, tmp_path / "alone", encoding="utf-16")
    swivel.count(file, tmp_path / "many", encoding="utf-16", options=RunOptions(ray=address))
    assert_same(tmp_path / "alone", tmp_path / "many")


def test_a_file_url_is_a_path(text: Path, tmp_path: Path, address: str) -> None:
    swivel.count(text, tmp_path / "alone")
    swivel.count(f"file://{text}", tmp_path / "many", options=RunOptions(ray=address))
    assert_same(tmp_path / "alone", tmp_path / "many")


def test_a_url_is_read_by_every_node(text: Path, tmp_path: Path, address: str) -> None:
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(text, "in/a.txt")
        archive.writestr("in/b.txt", "wörd1 wörd2\n" * 500)
        archive.writestr("in/.hidden", "wörd1 wörd9\n" * 500)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(text.read_bytes())
    (tmp_path / "in" / "b.txt").write_text("wörd1 wörd2\n" * 500)
    alone = swivel.count(tmp_path / "in")
    url = f"zip://in::file://{tmp_path}/corpus.zip"
    many = swivel.count(url, tmp_path / "many", options=RunOptions(ray=address))
    assert list(many.rows) == list(alone.rows)
    assert np.array_equal(many.row_sums, alone.row_sums)
    assert many.cell_count == alone.cell_count
    assert swivel.count(url).fingerprint == many.fingerprint  # URLs are also read on one machine


def test_a_memory_budget_that_needs_several_runs_gives_the_same_files(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MIN_PIECE_BYTES", 1 << 30)
    text = write_lines(tmp_path / "a.txt", 5_000, 3)
    swivel.count(text, tmp_path / "alone", min_count=1)
    swivel.count(text, tmp_path / "many", min_count=1, options=RunOptions(ray=address, memory="2.6MiB"))
    assert_same(tmp_path / "alone", tmp_path / "many")
    with pytest.raises(MemoryBudgetError, match=r"needs at least 2.* MiB of memory, got 1.0 MiB"):
        swivel.count(text, tmp_path / "less", min_count=1, options=RunOptions(ray=address, memory="1MiB"))


def test_more_runs_than_one_merge_takes_are_merged(
    text: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MIN_PIECE_BYTES", 400)
    monkeypatch.setattr(counting, "PIECES_PER_CORE", 1_000)
    watcher = Watcher("", lambda: None)
    swivel.count(text, tmp_path / "alone")
    swivel.count(text, tmp_path / "many", options=RunOptions(ray=address, progress=watcher))
    assert sum(note.startswith("counting: ") for note in watcher.notes) > 64
    assert_same(tmp_path / "alone", tmp_path / "many")


@pytest.mark.parametrize("job", ["counting", "merging"])
def test_a_lost_node_does_not_change_the_files(
    job: str, text: Path, tmp_path: Path, address: str, two_nodes: TwoNodes
) -> None:
    swivel.count(text, tmp_path / "alone")
    watcher = Watcher(job, two_nodes.lose_node)

    try:
        swivel.count(text, tmp_path / "many", options=RunOptions(ray=address, progress=watcher))
    finally:
        two_nodes.replace_node()

    assert watcher.job == ""
    assert_same(tmp_path / "alone", tmp_path / "many")


def test_an_interrupt_ends_the_tasks_and_leaves_nothing(text: Path, tmp_path: Path, address: str) -> None:
    import ray

    def interrupt() -> None:
        raise KeyboardInterrupt

    for job in ("reading", "counting", "merging"):
        with pytest.raises(KeyboardInterrupt):
            swivel.count(text, tmp_path / "many", options=RunOptions(ray=address, progress=Watcher(job, interrupt)))
        assert not (tmp_path / "many").exists()

    deadline = time.monotonic() + 120
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline:
        time.sleep(0.1)

    assert ray.available_resources().get("CPU") == 2


def test_the_command_line_counts_on_a_cluster(text: Path, tmp_path: Path, address: str) -> None:
    command = ["count", str(text), "-o", str(tmp_path / "many"), "--ray", address, "--quiet", "--json"]
    ended = CliRunner().invoke(cli, command, catch_exceptions=False)
    swivel.count(text, tmp_path / "alone")
    assert json.loads(ended.stdout)["cells"] == swivel.open_matrix(tmp_path / "alone").cell_count
    assert_same(tmp_path / "alone", tmp_path / "many")
    watcher = Watcher("", lambda: None)
    swivel.count(
        text, tmp_path / "many", options=RunOptions(ray="127.0.0.1:1", progress=watcher)
    )  # no connection is made
    assert watcher.messages == [f"{tmp_path / 'many'}: finished already, nothing to do"]


def test_errors_equal_those_of_one_machine(tmp_path: Path, address: str) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"all is well\n" * 2_000 + b"here \xff not\n" + b"all is well\n" * 2_000)
    alone = tmp_path / "alone.txt"
    alone.write_text("one\ntwo\n" * 100)
    cases: list[tuple[Path, type[Exception], dict[str, Any]]] = [
        (bad, CorpusError, {}),
        (alone, VocabularyError, {"min_count": 1_000}),
        (alone, VocabularyError, {"vocabulary": ["three"]}),
        (alone, CountsError, {}),
    ]

    for file, error, settings in cases:
        with pytest.raises(error) as local:
            swivel.count(file, **settings)
        with pytest.raises(error) as remote:
            swivel.count(file, tmp_path / "many", options=RunOptions(ray=address), **settings)
        assert str(remote.value) == str(local.value)

    assert not (tmp_path / "many").exists()


def test_unsupported_counts_on_a_cluster_are_refused(text: Path, tmp_path: Path, address: str) -> None:
    for texts in (["a b", "b a"], "-"):
        with pytest.raises(ConfigError, match="counting on Ray reads files; save text from memory or from a pipe"):
            swivel.count(texts, tmp_path / "many", options=RunOptions(ray=address))

    with pytest.raises(ConfigError, match="runs on CPU cores, got device='meta'"):
        swivel.count(text, tmp_path / "many", device="meta", options=RunOptions(ray=address))

    with pytest.raises(
        MemoryBudgetError, match=r"memory per task is 9.1 TiB, but the largest node has .* pass a smaller memory"
    ):
        swivel.count(text, tmp_path / "many", options=RunOptions(ray=address, memory="10TB"))


def test_a_node_that_cannot_run_tasks_raises_an_error(tmp_path: Path, address: str) -> None:
    with pytest.raises(ClusterError, match=r"node [\d.]+ does not see .*; the output folder must be on storage"):
        counting.TextReading(config=CorpusConfig(), shared=tmp_path / "nowhere").check()

    with pytest.raises(ClusterError, match=r"node [\d.]+ has Swivel .*, the driver 0.0; install the same"):
        counting.TextReading(config=CorpusConfig(), shared=tmp_path, version="0.0").check()

    reading = counting.TextReading(config=CorpusConfig(), shared=tmp_path)
    with pytest.raises(
        CorpusError, match=r"nowhere.txt: no such file .* \(node [\d.]+; every node must see the corpus"
    ):
        counting.read_ranges((FileRange(tmp_path / "nowhere.txt", 0, None, 1),), reading)


@pytest.mark.parametrize("max_groups", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_are_all_shards_in_order_and_whole_row_blocks(max_groups: int, symmetric: bool) -> None:
    groups = cut_groups(Layout(100, 100, 13, 13, symmetric), max_groups)
    assert [shard for group in groups for shard in group] == list(range(13 * 13))
    assert all(group.start % 13 == 0 for group in groups)
    assert all(groups)
    assert len(groups) <= max_groups
