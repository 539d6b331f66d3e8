"""The command line, verb by verb: what it prints, where, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from docs_world import shorten_demo
from swivel._version import __version__
from swivel.cli import cli, main
from swivel.cli.flags import translate
from swivel.cli.terminal import draw_demo, draw_facts, draw_neighbors, next_command
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.pipeline.train import train
from swivel.runtime.progress import format_rate
from swivel.storage.manifest import read_manifest
from swivel.training import executor as workers
from swivel.training.backends import BackendSettings
from swivel.training.checkpoint import CheckpointStore
from swivel.training.training_plan import create_backend
from swivel.vectors import Neighbor, Vectors, VectorTable

LINES = ["the king and the queen", "a man and a woman", "the king is a man", "the queen is a woman"] * 5
QUICK = ["--dim", "4", "--epochs", "2", "--backend", "cpu", "--dtype", "float32"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def swivel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `main()`, as the installed command does."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["swivel", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as leave:
            status = int(leave.code or 0)
        out, err = capsys.readouterr()
        return Ended(status, out, err)

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n".join(LINES) + "\n")
    return file


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    done = CliRunner().invoke(cli, ["run", str(folder / "text.txt"), "-o", str(folder), *QUICK, "--quiet"])
    assert done.exit_code == 0, done.output
    return folder


# Text to vectors


def test_run_makes_vectors_and_says_what_is_next(swivel: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "my work"
    ended = swivel("run", text, "-o", out, *QUICK)
    assert ended.status == 0
    assert ended.out == f"{out}/vectors: 8 vectors of 4 dimensions\n"
    assert ended.err.splitlines()[-1] == f"next: swivel nearest '{out}/vectors' woman"
    assert "\r" not in ended.err, "there are no bars where standard error is no terminal"
    assert "%" not in ended.err


def test_training_a_table_says_how_to_recommend(swivel: Run, tmp_path: Path) -> None:
    table = tmp_path / "ratings.tsv"
    table.write_text("".join(f"user{n % 5}\tfilm{n % 7}\t1\n" for n in range(30)))
    matrix, out = tmp_path / "matrix", tmp_path / "vectors"
    assert swivel("import", table, "-o", matrix).status == 0
    ended = swivel("train", matrix, "-o", out, "--dim", "2", "--epochs", "1", "--no-report")
    command = ended.err.splitlines()[-1]
    assert command.startswith(f"next: swivel recommend {out} user")
    assert command.endswith(f" --matrix {matrix}")
    assert swivel(*command.split()[2:]).status == 0


@pytest.mark.parametrize(("matrix", "vectors"), [("graph/matrix", "graph/vectors"), ("baskets", "baskets-vectors")])
def test_import_names_a_folder_for_vectors_beside_the_matrix(
    swivel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: str, vectors: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = swivel("import", write(tmp_path / "t.tsv", "ann\ttea\t1\nbob\tjam\t2\n"), "-o", matrix)
    assert ended.err.splitlines()[-1] == f"next: swivel train {matrix} -o {vectors}"


def test_demo_keeps_its_vectors(swivel: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shorten_demo(monkeypatch, text)
    ended = swivel("demo", "--no-report")
    assert ended.status == 0
    command = ended.err.splitlines()[-1]
    assert command == "next: swivel explore swivel-demo/vectors"
    assert len(Vectors.load(command.split()[-1])) == 8
    assert "swivel-demo/vectors: finished already, nothing to do" in swivel("demo", "--no-report").err


def test_run_again_does_nothing(swivel: Run, text: Path, tmp_path: Path) -> None:
    first = swivel("run", text, "-o", tmp_path / "work", *QUICK)
    again = swivel("run", text, "-o", tmp_path / "work", *QUICK)
    assert (again.status, again.out) == (0, first.out)
    assert again.err.count("finished already, nothing to do") == 2


def test_stages_one_by_one_make_the_same(swivel: Run, text: Path, tmp_path: Path) -> None:
    swivel("run", text, "-o", tmp_path / "work", *QUICK)
    matrix, vectors = tmp_path / "matrix", tmp_path / "vectors"
    counted = swivel("count", text, "-o", matrix)
    assert (counted.status, counted.out.startswith(f"{matrix}: 8 x 32, ")) == (0, True)
    assert swivel("train", matrix, "-o", vectors, *QUICK).status == 0
    for part in ("vectors.safetensors", "rows.txt"):
        assert (vectors / part).read_bytes() == (tmp_path / "work" / "vectors" / part).read_bytes()


def test_json_is_all_there_is_on_standard_output(swivel: Run, text: Path, tmp_path: Path) -> None:
    matrix, vectors = tmp_path / "matrix", tmp_path / "vectors"
    counted = swivel("count", text, "-o", matrix, "--json").json
    assert (counted["rows"], counted["columns"], counted["matrix"]) == (8, 32, str(matrix))
    assert counted["total"] > 0
    expected = {"vectors": str(vectors), "tokens": 8, "dim": 4}
    assert swivel("train", matrix, "-o", vectors, *QUICK, "--json").json == expected
    assert swivel("run", text, "-o", tmp_path / "run", *QUICK, "--json").json["dim"] == 4


def test_quiet_says_nothing(swivel: Run, text: Path, tmp_path: Path) -> None:
    for verb, source, out in [("run", text, "a"), ("count", text, "b"), ("train", tmp_path / "b", "c")]:
        flags = QUICK if verb != "count" else []
        ended = swivel(verb, source, "-o", tmp_path / out, *flags, "--quiet")
        assert (ended.status, ended.err) == (0, "")


def test_several_texts_folders_and_globs_are_read(swivel: Run, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"word{number} word{number} word{number}\n" * 5)
    for number, texts in enumerate([(folder,), (f"{folder}/*.txt",), sorted(folder.iterdir())]):
        out = tmp_path / f"matrix-{number}"
        assert swivel("count", *texts, "-o", out, "--json").json["rows"] == 3
    assert swivel("count", text, folder, "-o", tmp_path / "all", "--json").json["rows"] == 11


def test_text_is_read_from_standard_input(
    swivel: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert swivel("count", "-", "-o", tmp_path / "matrix", "--json").json["rows"] == 8


def test_own_vocabulary_is_read_from_a_file(swivel: Run, text: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_bytes("\ufeffking\t3\r\nqueen\r\n\n".encode())
    assert swivel("count", text, "-o", tmp_path / "matrix", "--vocabulary", words, "--json").json["rows"] == 2
    assert (tmp_path / "matrix" / "rows.txt").read_text() == "king\t10\nqueen\t10\n"


def test_settings_reach_their_stages(swivel: Run, text: Path, tmp_path: Path) -> None:
    flags = ["--no-lowercase", "--window", "2", "--columns", "symmetric", "--min-count", "2", "--recipe", "fast"]
    assert swivel("run", text, "-o", tmp_path / "work", *QUICK, *flags, "--learning-rate", "0.05").status == 0
    counted = read_manifest(tmp_path / "work" / "matrix").config
    trained = read_manifest(tmp_path / "work" / "vectors").config
    assert counted["corpus"]["lowercase"] is False
    assert (counted["count"]["window"], counted["vocabulary"]["min_count"]) == (2, 2)
    assert (trained["train"]["learning_rate"], trained["vectors"]["combine"]) == (0.05, "sum")


def test_device_and_its_memory_reach_counting_and_training(
    swivel: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int | None]] = []

    def note(name: str, settings: BackendSettings) -> Any:
        seen.append((settings.device, settings.memory))
        return create_backend(name, settings)

    monkeypatch.setattr(workers, "create_backend", note)
    flags = ["--device", "cpu", "--device-memory", "1GiB"]
    assert swivel("run", text, "-o", tmp_path / "work", *QUICK, *flags).status == 0
    assert seen == [("cpu", 1 << 30)]
    for stage in ("matrix", "vectors"):
        for settings in read_manifest(tmp_path / "work" / stage).config.values():
            assert "device_memory" not in settings, "what a job may use changes no result"


# Vectors


def test_nearest_shows_neighbors_of_each_word(swivel: Run, work: Path) -> None:
    ended = swivel("nearest", work / "vectors", "king", "queen", "-n", "3")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert (lines[0], lines[4], len(lines)) == ("king", "queen", 8)
    assert re.fullmatch(r"  [ -]\d\.\d{3}  \w+", lines[1])


def test_nearest_takes_arithmetic_and_the_folder_of_a_run(swivel: Run, work: Path) -> None:
    found = swivel("nearest", work, "king - man + woman", "--json").json["king - man + woman"]
    assert not {"king", "man", "woman"} & {answer["token"] for answer in found}
    assert found == swivel("analogy", work / "vectors", "man", "king", "woman", "-n", "10", "--json").json


def test_answers_may_be_restricted_to_frequent_words(swivel: Run, work: Path) -> None:
    for command in (["nearest", work, "king"], ["analogy", work, "man", "king", "woman"]):
        plain = swivel(*command, "-n", "50", "--json").json
        restricted = swivel(*command, "-n", "50", "--restrict-vocab", "5", "--json").json
        if command[0] == "nearest":
            plain, restricted = plain["king"], restricted["king"]
        assert 0 < len(restricted) < len(plain)
        assert restricted == [each for each in plain if each in restricted]
    check_error(
        swivel("nearest", work, "king", "--restrict-vocab", "0"), 2, "error: invalid value for '--restrict-vocab': 0 .*"
    )


def test_nearest_among_columns_has_scores(swivel: Run, work: Path) -> None:
    found = swivel("nearest", work, "king", "--among", "columns", "-n", "2", "--json").json["king"]
    assert len(found) == 2


def test_analogy_answers(swivel: Run, work: Path) -> None:
    ended = swivel("analogy", work / "vectors", "man", "king", "woman", "-n", "2", "--method", "3cosmul")
    lines = ended.out.splitlines()
    assert (ended.status, lines[0], len(lines)) == (0, "man : king = woman : ?", 3)


def test_question_without_answers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    draw_neighbors({"hermit": []})
    assert capsys.readouterr().out == "hermit\n  (no neighbors)\n"


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """Vectors on which the answers are known."""
    table = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], np.float32)
    Vectors(VectorTable(Vocabulary(["king", "man", "woman", "queen"]), table)).save(tmp_path / "square")
    return tmp_path / "square"


def test_evaluate_shows_a_table_of_own_files(swivel: Run, square: Path, tmp_path: Path) -> None:
    (tmp_path / "near.tsv").write_text("king\tman\t9\nking\tqueen\t5\nman\twoman\t1\n")
    (tmp_path / "pairs.txt").write_text(": royal\nman king woman queen\n: other\nman king woman zebra\n")
    files = [tmp_path / "near.tsv", tmp_path / "pairs.txt"]
    assert swivel("evaluate", square, *files, "--sections").out.splitlines() == [
        "set       measure  figure  95 % interval  known only  all items  known  of  coverage",
        "near          rho   1.000  too few known       1.000      1.000      3   3    100.0%",
        "pairs    accuracy   0.500  too few known       1.000      0.500      1   2     50.0%",
        "  royal  accuracy   1.000  too few known       1.000      1.000      1   1    100.0%",
        "  other  accuracy       -     none known           -          -      0   1      0.0%",
    ]
    data = swivel("evaluate", square, *files, "--json", "--unknown", "skip").json
    assert [item["name"] for item in data["sets"]] == ["near", "pairs"]


def test_evaluate_takes_a_folder_and_says_what_it_leaves_out(swivel: Run, square: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "near.tsv").write_text("king\tman\t9\nking\tqueen\t5\n")
    (folder / "notes.txt").write_text("these are notes, and no test set\n")
    ended = swivel("evaluate", square, folder)
    assert (ended.status, ended.err) == (0, "notes.txt: skipped, not a test set\n")
    assert swivel("evaluate", square, folder, "--quiet").err == ""


# Info


def test_info_shows_what_a_folder_holds(swivel: Run, work: Path) -> None:
    for stage in ("matrix", "vectors"):
        data = swivel("info", work / stage, "--json").json
        assert (data["holds"], "checksums" in data) == (stage, False)
    shown = swivel("info", work / "vectors", "--verify").out
    assert "checksums: all as written" in shown
    assert "dim: 4\n" in shown
    assert re.search(r"losses: observed [\d.e-]+, .* at first; observed .* after 2\n", shown)


def test_info_shows_a_whole_run(swivel: Run, work: Path) -> None:
    assert list(swivel("info", work, "--json").json) == ["matrix", "vectors"]
    assert swivel("info", work).out.startswith("matrix:\n  folder: ")


def test_info_shows_inputs_size_and_age_and_hashes_only_if_asked(swivel: Run, work: Path) -> None:
    shown = swivel("info", work).out
    assert "  inputs: text.txt\n" in shown
    assert "  inputs: matrix\n" in shown
    assert len(re.findall(r"^  written: \d{4}-\d\d-\d\d \d\d:\d\d$", shown, re.MULTILINE)) == 2
    assert "    window: 10\n" in shown
    digest = r"\b[0-9a-f]{16,}\b"
    assert not re.search(digest, shown)
    assert len(re.findall(digest, swivel("info", work, "--verbose").out)) > 4


def test_info_shows_how_far_an_unfinished_run_is(
    swivel: Run, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(work / "matrix", tmp_path / "matrix")
    rounds = iter(range(100))

    def is_due(store: CheckpointStore) -> bool:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(CheckpointStore, "is_due", is_due)
        train(tmp_path / "matrix", tmp_path / "vectors", dim=4, epochs=7)

    shown = swivel("info", tmp_path).out
    assert shown.startswith("matrix:\n")
    part = shown[shown.index("vectors:\n") :]
    assert "holds: unfinished training; run the same command again to resume\n" in part
    assert re.search(r"  epochs: [0-6] of 7\n  steps: [1-6] of 7\n  saved: .*\d\d:\d\d\n", part)
    assert "    dim: 4\n" in part
    assert not re.search("^  size: 0 ", part, re.MULTILINE)
    assert swivel("info", tmp_path / "vectors", "--json").json["holds"].startswith("unfinished")

    for slot in (tmp_path / "vectors").glob("checkpoint-*"):
        fields = json.loads((slot / "manifest.json").read_text())
        del fields["checksum"]
        (slot / "manifest.json").write_text(json.dumps(fields | {"config": {"plan": {"epochs": "x"}}}))
    check_error(swivel("info", tmp_path / "vectors"), 1, r"error: .*vectors: no manifest\.json.*")


def test_info_shows_the_machine(swivel: Run) -> None:
    data = swivel("info", "--json").json
    assert data["swivel-embeddings"] == __version__
    assert {"cores", "backend", "device", "libraries", "free memory"} <= set(data)


def test_facts_are_drawn_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    draw_facts({"a": {"size": 1234, "none": None}, "list": [1, "b"], "share": 1 / 3, "yes": True})
    assert capsys.readouterr().out == "a:\n  size: 1,234\n  none: -\nlist: 1, b\nshare: 0.3333\nyes: True\n"


# Errors: one line and an exit status


def check_error(ended: Ended, status: int, line: str) -> None:
    assert (ended.status, ended.out) == (status, "")
    assert re.fullmatch(line, ended.err.strip()), ended.err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--window", "0"], "error: --window must be a positive integer, got 0"),
        (["--threads", "0"], "error: --threads must be a positive integer up to 4,096, got 0"),
        (["--threads", "1000000"], "error: --threads must be a positive integer up to 4,096, got 1000000"),
        (["--memory", "lots"], "error: --memory must be a number of bytes such as 1GiB or 500MB, got 'lots'"),
        (
            ["--device-memory", "lots"],
            "error: --device-memory must be a number of bytes such as 1GiB or 500MB, got 'lots'",
        ),
        (["--left", "0", "--right", "0"], "error: --left and --right are both 0: there is nothing to count"),
        (["--vocabulary", "nowhere.txt"], "error: nowhere.txt: no such file or folder"),
    ],
)
def test_wrong_values_are_usage_errors(swivel: Run, text: Path, tmp_path: Path, flags: list[str], line: str) -> None:
    check_error(swivel("count", text, "-o", tmp_path / "matrix", *flags), 2, re.escape(line))
    assert not (tmp_path / "matrix").exists()


def test_vocabulary_file_that_is_no_text_is_refused(swivel: Run, text: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"caf\xe9\n")
    ended = swivel("count", text, "-o", tmp_path / "matrix", "--vocabulary", tmp_path / "words")
    check_error(ended, 2, "error: .*words: not valid UTF-8; convert the file first")


@pytest.mark.parametrize("arguments", [["run"], ["nonsense"], ["run", "x", "-o", "y", "--nonsense"], ["demo", "x"]])
def test_wrong_usage_is_a_usage_error(swivel: Run, arguments: list[str]) -> None:
    ended = swivel(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].startswith("error: ")


def test_missing_files_are_errors(swivel: Run, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    out = ["-o", tmp_path / "out"]
    check_error(swivel("run", nowhere, *out), 1, "error: '.*nowhere': no such file or folder")
    check_error(swivel("run", nowhere, nowhere, *out), 1, "error: '.*nowhere': no such file or folder")
    check_error(swivel("run", f"{nowhere}*", *out), 1, "error: .*no file matches")
    check_error(swivel("train", nowhere, *out), 1, "error: .*nowhere: no such folder")
    check_error(swivel("nearest", nowhere, "king"), 1, "error: .*nowhere: no such file or folder")
    check_error(swivel("info", nowhere), 1, "error: .*nowhere: no such folder")


def test_info_on_a_file_or_on_an_empty_folder_is_an_error(swivel: Run, text: Path, tmp_path: Path) -> None:
    check_error(swivel("info", text), 1, "error: .*text.txt: a file, not a folder that Swivel wrote")
    (tmp_path / "empty").mkdir()
    check_error(
        swivel("info", tmp_path / "empty"),
        1,
        r"error: .*empty: no manifest\.json, so this is not a folder that Swivel wrote",
    )


def test_training_a_text_is_an_error_that_says_what_to_use(swivel: Run, text: Path, tmp_path: Path) -> None:
    line = "error: .*text.txt: a file, not a matrix; for text use swivel run, .*"
    check_error(swivel("train", text, "-o", tmp_path / "out"), 1, line)


@pytest.mark.parametrize("arguments", [[], ["plot"], ["completion"]])
def test_without_arguments_the_help_is_shown_line_by_line(swivel: Run, arguments: list[str]) -> None:
    ended = swivel(*arguments)
    assert (ended.status, ended.err) == (2, swivel(*arguments, "--help").out)


def test_output_below_a_file_is_an_error(swivel: Run, text: Path) -> None:
    for verb in ("run", "count"):
        check_error(swivel(verb, text, "-o", text / "out"), 1, "error: .*text.txt.*: Not a directory")
    check_error(swivel("demo", "-o", text / "out", "--quiet"), 1, "error: .*text.txt.*: Not a directory")


def test_folder_of_another_stage_is_an_error(swivel: Run, work: Path, tmp_path: Path) -> None:
    check_error(swivel("nearest", work / "matrix", "king"), 1, "error: .*: a folder with a matrix, not with vectors")
    ended = swivel("train", work / "vectors", "-o", tmp_path / "out")
    check_error(ended, 1, "error: .*: a folder with vectors, not with a matrix")


def test_finished_folder_with_other_settings_is_an_error(swivel: Run, work: Path) -> None:
    ended = swivel("run", work / "text.txt", "-o", work, *QUICK, "--seed", "7", "--quiet")
    check_error(ended, 1, r"error: .*vectors: finished already with other settings \(train.seed\); .*")


def test_damaged_matrix_is_an_error(swivel: Run, text: Path, tmp_path: Path) -> None:
    swivel("count", text, "-o", tmp_path / "matrix")
    file = tmp_path / "matrix" / "counts.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    line = r"error: .*counts\.npy: checksum differs .*"
    check_error(swivel("train", tmp_path / "matrix", "-o", tmp_path / "vectors", "--quiet"), 1, line)
    check_error(swivel("info", tmp_path / "matrix", "--verify"), 1, line)


def test_unknown_word_is_an_error_with_close_spellings(swivel: Run, work: Path) -> None:
    line = "error: 'quen' is not in the vocabulary of 8 tokens; did you mean 'queen'.*"
    check_error(swivel("nearest", work, "quen"), 1, line)
    check_error(swivel("analogy", work, "man", "king", "quen"), 1, line)


def test_unknown_words_are_explained(swivel: Run, work: Path, tmp_path: Path) -> None:
    check_error(swivel("nearest", work, "King"), 1, "error: 'King' is not in .*; did you mean 'king'[?,].*")
    swivel("import", write(tmp_path / "t.tsv", "ann\ttea\t1\nbob\tjam\t2\n"), "-o", tmp_path / "m")
    swivel("train", tmp_path / "m", "-o", tmp_path / "v", "--dim", "2")
    check_error(swivel("nearest", tmp_path / "v", "tea"), 1, "error: 'tea' is the label of a column, not of a row; .*")
    check_error(swivel("nearest", tmp_path / "v", "zed"), 1, "error: 'zed' is not in the vocabulary of 2 labels")


def test_files_of_another_kind_are_not_written(swivel: Run, work: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", "zzz qqq\n")
    check_error(swivel("encode", work, text, "-o", tmp_path / "b.txt"), 2, "error: .*: arrays are written as .npy")
    check_error(swivel("export", work, "-", "--format", "glove"), 2, "error: vectors are written to a file, not .*")
    assert "no word of " in swivel("encode", work, text, "-o", tmp_path / "b.npy").err


def test_a_map_does_not_replace_a_file_unless_asked(swivel: Run, work: Path, tmp_path: Path) -> None:
    command = ["plot", "map", work, "-o", write(tmp_path / "map.svg", "mine"), "--layout", "pca"]
    check_error(swivel(*command), 1, "error: .*map.svg: exists already; choose another file or pass --overwrite")
    assert swivel(*command, "--overwrite").status == 0
    assert "<svg" in (tmp_path / "map.svg").read_text()


def write(file: Path, content: str) -> Path:
    file.write_text(content)
    return file


def test_wrong_number_of_answers_is_a_usage_error(swivel: Run, work: Path) -> None:
    check_error(swivel("nearest", work, "king", "-n", "0"), 2, "error: --count must be a positive integer, got 0")


@pytest.mark.parametrize("order", [["--traceback", "info", "nowhere"], ["info", "nowhere", "--traceback"]])
def test_traceback_is_shown_when_asked_for(swivel: Run, order: list[str]) -> None:
    ended = swivel(*order)
    assert ended.status == 1
    assert ended.err.startswith("Traceback (most recent call last):")
    assert ended.err.splitlines()[-1] == "error: nowhere: no such folder"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MemoryError(), 1, "error: not enough memory; .*"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
    ],
)
def test_other_ends_are_one_line_too(
    swivel: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise error

    monkeypatch.setattr("swivel.pipeline.info.describe_machine", fail)
    check_error(swivel("info"), status, line)


def test_rates_are_written_for_people() -> None:
    rates = [format_rate(speed, "cells") for speed in (None, 0, 12.34, 1500, 2.5e6, 3e9)]
    assert rates == ["", "", "12.3 cells/s", "1.5 k cells/s", "2.5 M cells/s", "3.0 G cells/s"]


def test_demo_is_drawn_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    near = [Neighbor("sun", 0.9), Neighbor("earth", 0.8)]
    sections = [("plurals", 3, 4), ("past", 0, 4)]
    answers = {"man is to king as woman": "queen"}
    numbers = {"words": 5, "cells": 12345, "seconds": 9.6}
    draw_demo({**numbers, "neighbors": {"moon": near}, "analogies": answers, "sections": sections})
    lines = capsys.readouterr().out.splitlines()
    assert "5 words, 12,345 observed cells: vectors in 10 seconds" in lines
    assert f"{'moon':>9}  sun, earth" in lines
    assert f"{'man is to king as woman':>34} is to queen" in lines
    assert "         plurals  ###############.....   75% of 4" in lines
    assert "             all  ########............   38% of 8" in lines


def test_next_command_names_a_program_that_the_shell_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = tmp_path / "bin" / "swivel"
    typed.parent.mkdir()
    typed.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(typed)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next_command("explore", Path("work")) == f"next: {typed} explore work"
    monkeypatch.setenv("PATH", str(typed.parent))
    assert next_command("explore", Path("work")) == "next: swivel explore work"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert next_command("explore", Path("work")) == "next: swivel explore work"


@pytest.mark.parametrize(
    ("verb", "message", "arguments", "expected"),
    [
        ("count", "left and right are both 0", ("left", "right"), "--left and --right are both 0"),
        ("count", "work: finished already; pass overwrite=True", (), "work: finished already; pass --overwrite"),
        ("nearest", "create the folder again with overwrite=True", (), "create the folder again with --overwrite"),
        ("train", "lower block_size or dim", ("block_size", "dim"), "lower --block-size or --dim"),
        ("train", "init has no column vectors", ("init",), "--init has no column vectors"),
        ("train", "next: swivel train new --init VECTORS -o out", ("init",), None),
        ("train", "pass out", ("out",), "pass --output"),
        ("train", "pass backend='torch' or dtype='float32'", (), "pass --backend torch or --dtype float32"),
        ("train", "these rows and columns are different things", (), None),
        ("train", "min_count: no such folder", (), None),
        ("import", "byte 3: a number without an end", (), None),
        ("explore", "pass port=8708, or port=0", (), "pass --port 8708, or --port 0"),
        ("explore", "pass the matrix that these vectors were trained on", (), None),
        ("info", "/data/min_count/dim=3: no such folder", (), None),
        ("info", "/data/dim.txt, 'dim' and dim-3 in dim/3", ("dim",), None),
    ],
)
def test_messages_translate_instead_of_python_arguments(
    verb: str, message: str, arguments: tuple[str, ...], expected: str | None
) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert translate(message, arguments, command) == (message if expected is None else expected)


@pytest.mark.parametrize(
    "words", [["nope"], ["--bogus"], ["count"], ["count", "--bogus"], ["count", "t", "-o"], ["plot", "nope"]]
)
def test_messages_of_click_begin_like_all_others(swivel: Run, words: list[str]) -> None:
    ended = swivel(*words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1


def test_a_local_cluster_is_said_to_be_open(swivel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise ConfigError("stop")

    monkeypatch.setattr("swivel.pipeline.count.count", stop)
    warning = "warning: the cluster of --ray local listens on all network interfaces, without a password"
    assert swivel("count", "t", "-o", "m", "--ray", "local").err.startswith(warning)
    assert swivel("count", "t", "-o", "m", "--ray", "auto").err == "error: stop\n"
