"""Inputs and outputs stay apart: what Swivel wrote is recognized, and no output replaces an input."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from swivel.cli import cli
from swivel.errors import ConfigError, FolderExists, StorageError
from swivel.storage.files import create_folder, write_file
from swivel.storage.lock import scratch_folder
from swivel.storage.manifest import read_manifest
from swivel.storage.output_folder import is_own_file, is_own_folder, refuse_overlap
from swivel.training.checkpoint import CheckpointStore, TrainingState

QUICK = ["--dim", "4", "--epochs", "1", "--backend", "cpu", "--dtype", "float32", "--quiet"]


def make_result(folder: Path) -> Path:
    with create_folder(folder, "example") as writer:
        writer.write_lines("rows.txt", ["a"])
        writer.finish(config={}, inputs={}, facts={})
    return folder


def test_result_folders_are_recognized_finished_or_not(tmp_path: Path) -> None:
    assert is_own_folder(make_result(tmp_path / "finished"))

    CheckpointStore(tmp_path / "training", {}).save(TrainingState(), np.zeros((1, 1), np.bool_), {}, {})
    assert is_own_folder(tmp_path / "training")

    with scratch_folder(tmp_path / "counting") as scratch:
        assert is_own_folder(tmp_path / "counting")
        assert is_own_folder(scratch)


@pytest.mark.parametrize("name", ["manifest.json", "lock", "report.html", "scratch-notes"])
def test_files_of_other_tools_are_not_taken_for_results(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "a web page", "version": 2}')
    assert not is_own_folder(tmp_path)
    assert not is_own_file(tmp_path / name)


def test_output_must_not_be_or_contain_an_input(tmp_path: Path) -> None:
    text = tmp_path / "texts" / "a.txt"
    write_file(text, b"a")
    for output in (text, text.parent, tmp_path):
        with pytest.raises(ConfigError, match=r"the output would replace the input .*a\.txt; choose another output"):
            refuse_overlap([output], [None, text])
    refuse_overlap([tmp_path / "new", tmp_path / "texts" / "new"], [text])


def test_links_do_not_hide_an_input(tmp_path: Path) -> None:
    result = make_result(tmp_path / "result")
    (tmp_path / "link").symlink_to(result)
    for output, path in ((tmp_path / "link", result), (result, tmp_path / "link"), (result / "rows.txt", result)):
        with pytest.raises(ConfigError, match="the output would replace the input"):
            refuse_overlap([output], [path])


def test_what_cannot_be_compared_is_one_clear_line_or_left_to_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("n" * 300, "loop", "nul\0"):  # None of them has an identity; they are not the same file.
        refuse_overlap([tmp_path / name], [tmp_path / "missing", tmp_path / "loop"])
        refuse_overlap([tmp_path / "loop", tmp_path], [])

    def refuse(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    (tmp_path / "closed").mkdir()
    with pytest.raises(StorageError, match=r"closed: Permission denied$"):
        refuse_overlap([tmp_path], [tmp_path / "closed"])


def test_output_may_be_beside_the_parts_of_an_input(tmp_path: Path) -> None:
    result = make_result(tmp_path / "result")
    write_file(result / "figure.png", b"")
    refuse_overlap([result / "figure.png"], [result])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and results of every verb that others read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("tea milk sugar\nmilk tea\nsugar cup tea\n" * 20)
    (folder / "triples.tsv").write_text("tea\tmilk\t2\nmilk\tcup\t1\n")
    (folder / "sets").mkdir()
    (folder / "sets" / "pairs.tsv").write_text("tea\tmilk\t3\nmilk\tcup\t1\nsugar\ttea\t2\n")
    swivel.run(str(folder / "text.txt"), folder / "run", dim=4, epochs=1, min_count=1)
    swivel.export(swivel.load(folder / "run"), folder / "run.txt")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        "train run/matrix -o run/matrix --overwrite",
        "train run/matrix -o linked --overwrite",
        "train run/matrix --init run/vectors -o run/vectors --overwrite",
        "run text.txt --init run -o run --overwrite",
        "run run/vectors/rows.txt -o run --overwrite",
        "count text.txt -o . --overwrite",
        "count text.txt run/matrix/rows.txt -o run/matrix --overwrite",
        "count text.txt --vocabulary run/matrix/rows.txt -o run/matrix --overwrite",
        "count text.txt --phrases run/matrix/rows.txt -o run/matrix --overwrite",
        "run text.txt --vocabulary run/matrix/rows.txt -o run --overwrite",
        "extend run/vectors text.txt --vocabulary words/rows.txt -o words",
        "import triples.tsv -o . --overwrite",
        "import triples.tsv --row-labels words/rows.txt -o words",
        "add run/matrix run/matrix -o run/matrix --overwrite",
        "phrases text.txt -o text.txt --overwrite",
        "phrases text.txt words -o words/rows.txt --overwrite",
        "encode run/vectors text.txt -o text.txt --overwrite",
        "extend run/vectors text.txt -o run/vectors --overwrite",
        "export run/vectors run/vectors --format swivel",
        "export run run/vectors/vectors.safetensors",
        "export run.txt run.txt --format glove",
        "compare run run -o run/vectors/manifest.json",
    ],
)
def test_every_verb_refuses_to_replace_its_input(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    Path("linked").symlink_to("run/matrix")
    Path("figure.svg").write_text("")
    Path("words").mkdir()
    Path("words/rows.txt").write_text("tea\nmilk\n")
    shutil.copytree("sets", "run/evaluation")
    before = {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()}

    result = CliRunner().invoke(cli, [*arguments.split(), "--quiet"])
    assert isinstance(result.exception, ConfigError), result.output
    assert "the output would replace the input" in str(result.exception)
    assert {file: file.read_bytes() for file in Path().rglob("*") if file.is_file()} == before


def test_text_may_be_in_the_folder_of_its_run(made: Path, tmp_path: Path) -> None:
    text = shutil.copy(made / "text.txt", tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(cli, ["run", str(text), "-o", str(tmp_path), *QUICK])
        assert done.exit_code == 0, done.output


def test_output_folder_is_not_read_by_the_command_that_writes_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.link(made / "text.txt", "text.txt")
    for texts in (["."], ["**/*"], [str(tmp_path)], ["text.txt", "work"]):
        Path("work").mkdir()
        for _ in range(2):
            done = CliRunner().invoke(cli, ["run", *texts, "-o", "work", *QUICK])
            assert done.exit_code == 0, (texts, done.output, done.exception)
            assert len(swivel.load("work")) == 4
        shutil.rmtree("work")


def test_results_of_other_commands_are_not_read(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.link(made / "text.txt", "text.txt")
    shutil.copytree(made / "run", "earlier")
    Path("earlier/report.html").write_text("<!DOCTYPE html>\n<title>Swivel: earlier</title>")
    Path("earlier/lock").write_text('{"pid": 1, "host": "there"}')

    for number, texts in enumerate((".", "*", "**", "**/*.*")):
        matrix = swivel.count(texts, f"matrix-{number}", min_count=1)
        assert matrix.rows.tokens == swivel.count(Path("text.txt"), min_count=1).rows.tokens, texts
    found = swivel.count(Path().rglob("*.*"), min_count=1)
    assert len(found.rows) == 4


# Files of other tools


FOREIGN = ["rows.txt", "tuning.json", "vectors.safetensors", "checkpoint-1/pytorch_model.bin"]


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_swivel_did_not_write_are_not_touched(made: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "model" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"mine": true}')
    for tune in ([], ["--tune"]):
        done = CliRunner().invoke(
            cli, ["train", str(make_table(tmp_path)), "-o", str(tmp_path / "model"), *QUICK, *tune]
        )
        assert done.exit_code == 1
        assert isinstance(done.exception, FolderExists)
        place = tmp_path / "model" / Path(name).parts[0]
        assert re.match(f"{place}: (not written by Swivel|is not a checkpoint that Swivel wrote)", str(done.exception))
        assert [path for path in (tmp_path / "model").rglob("*") if path.is_file()] == [file]
        assert file.read_text() == '{"mine": true}'

    done = CliRunner().invoke(
        cli, ["train", str(tmp_path / "table"), "-o", str(tmp_path / "model"), *QUICK, "--overwrite"]
    )
    assert done.exit_code == 0, done.output


def make_table(folder: Path) -> Path:
    if not (folder / "table").exists():
        cells = [
            (f"r{row}", f"c{column}", 1 + row % 3) for row in range(30) for column in range(20) if (row + column) % 2
        ]
        swivel.import_counts(cells, folder / "table")
    return folder / "table"


def test_counting_does_not_replace_a_file_of_ones_own(made: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("mine")
    with pytest.raises(FolderExists, match=r"rows\.txt: not written by Swivel"):
        swivel.count(made / "text.txt", tmp_path, min_count=1)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.txt"]
    with pytest.raises(FolderExists, match=r"rows\.txt: not written by Swivel"):
        swivel.load(made / "run").save(tmp_path)
    assert (tmp_path / "rows.txt").read_text() == "mine"


def test_a_run_does_not_replace_a_report_of_ones_own(made: Path, tmp_path: Path) -> None:
    words = ["run", str(made / "text.txt"), "-o", str(tmp_path / "project"), "--min-count", "1", *QUICK]
    (tmp_path / "project").mkdir()
    report = tmp_path / "project" / "report.html"
    report.write_text("<title>Minutes</title>")
    refused = CliRunner().invoke(cli, words)
    assert str(refused.exception).startswith(f"{report}: not written by Swivel")
    assert [file.name for file in report.parent.iterdir()] == ["report.html"]

    assert CliRunner().invoke(cli, [*words, "--no-report"]).exit_code == 0
    assert report.read_text() == "<title>Minutes</title>"


def test_parts_that_a_killed_process_left_are_replaced(made: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("half")
    (tmp_path / "lock").write_text('{"pid": 4194305, "host": "here"}')
    assert len(swivel.count(made / "text.txt", tmp_path, min_count=1).rows) == 4
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("name", ["matrix", "vectors"])
def test_a_run_does_not_write_through_links(made: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "received").mkdir()
    (tmp_path / "received" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{name}: a link, through which nothing is written"):
        swivel.run(made / "text.txt", tmp_path / "received", dim=4, epochs=1, min_count=1)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["tuning.json", "checkpoint-1", "rows.txt"])
def test_training_does_not_write_through_links(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "received").mkdir()
    (tmp_path / "received" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"{name}: a link, through which nothing is written"):
        swivel.train(make_table(tmp_path), tmp_path / "received", dim=4, epochs=1)
    assert not list((tmp_path / "elsewhere").iterdir())


# Devices, pipes and files without an end


@pytest.mark.parametrize(
    "words",
    [
        ["export", "run/vectors", "out", "--format", "glove", "--overwrite"],
        ["encode", "run/vectors", "text.txt", "-o", "out", "--overwrite"],
        ["phrases", "text.txt", "-o", "out", "--overwrite"],
        ["plot", "epochs", "run", "-o", "out.png"],
        ["compare", "run/vectors", "run.txt", "-o", "out.tsv", "--min-count", "1"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_does_not_replace_a_pipe(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(made)
    name = next(word for word in words if word.startswith("out"))
    pipe = tmp_path / (name + (".npy" if words[0] == "encode" else ""))
    os.mkfifo(pipe)  # stands for a device, which a test must not risk
    done = CliRunner().invoke(cli, [str(pipe) if word == name else word for word in words])
    assert done.exit_code == 1
    assert str(done.exception) == f"{pipe}: not a regular file, so that no file is written in its place"
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["manifest.json", "rows.txt"])
def test_a_file_of_a_received_folder_that_has_no_end_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(made / "run" / "matrix", tmp_path / "matrix")
    file = tmp_path / "matrix" / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StorageError, match=f"{name}: not a regular file"):
        swivel.open_matrix(tmp_path / "matrix")
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match=f"{name}: not a regular file"):
        swivel.open_matrix(tmp_path / "matrix")


def test_a_manifest_of_40_gigabytes_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(40 << 30)
    with pytest.raises(StorageError, match=r"manifest\.json: 42,949,672,960 bytes, which no file of this name has"):
        read_manifest(tmp_path)


def test_a_record_of_a_search_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "tuning.json")
    for tune in (False, True):
        with pytest.raises(StorageError, match=r"tuning\.json: not written by Swivel"):
            swivel.train(table, tmp_path / "out", dim=4, epochs=1, tune=tune)


def test_a_list_of_words_without_an_end_is_refused(made: Path) -> None:
    with pytest.raises(ConfigError, match="/dev/zero: a device, not a list of tokens"):
        swivel.count(made / "text.txt", min_count=1, vocabulary=Path("/dev/zero"))
