"""What trained vectors are used for: `swivel export`, `swivel encode`, `swivel explore` and `swivel compare`."""

from __future__ import annotations

import dataclasses
import webbrowser
from pathlib import Path
from typing import Any

import click

from swivel.cli.flags import (
    Command,
    config_options,
    count_option,
    map_options,
    overwrite_option,
    refuse_idle_options,
    side_option,
    threads_option,
)
from swivel.cli.main import cli, open_vectors, output_option
from swivel.cli.terminal import align_table, next_command, print_result, show
from swivel.config import CorpusConfig, settings_of
from swivel.counts import export_counts, open_matrix
from swivel.errors import ConfigError
from swivel.explorer import server
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.arrays import write_array
from swivel.storage.files import create_file
from swivel.storage.manifest import MANIFEST
from swivel.storage.output_folder import check_format, check_output_file, refuse_overlap
from swivel.vectors import comparison, formats
from swivel.vectors.formats import FORMATS, find_vectors
from swivel.vectors.search import check_count
from swivel.vectors.text_encoder import SMOOTHING, find_tokenizer

_SIDE_HELP = "the vectors, or the trained columns by their own labels, as the tags of a table of packages and tags"
SHOWN_NEIGHBORS = 8
TRIPLES = "triples"  # a format of counts


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("file")
@click.option(
    "--format", type=click.Choice([*FORMATS, TRIPLES]), help="what to write  [default: what FILE's name ends in]"
)
@side_option(_SIDE_HELP)
@click.option("--with-zeros", is_flag=True, help="also write words without co-occurrences, whose vectors are zero")
@click.option("--suppress-below", type=float, metavar="N", help="of counts: leave out those below N, for publication")
@overwrite_option
def export(
    vectors: str,
    file: str,
    format: str | None,
    side: str,
    with_zeros: bool,
    suppress_below: float | None,
    options: RunOptions,
) -> None:
    """Write vectors in another tool's format, or convert another tool's file to a folder of vectors.

    With --format triples, the counts of a matrix are written, a row, a column and a count per line.

    \b
    swivel export work/vectors vectors.bin                          word2vec, gensim
    swivel export work/vectors vectors.kv                           gensim's KeyedVectors.load
    swivel export work/vectors vectors.txt                          word2vec's text; also .vec, .npy, .npz,
                                                                    .safetensors, .parquet, .arrow
    swivel export work/vectors model.bin --format fasttext-bin      words and n-grams, for fastText and gensim
    swivel export work/vectors tags.vec --side columns              what a table's columns are
    swivel export work/vectors static --format sentence-transformers
    swivel export work/vectors my-model --format huggingface        model2vec's folder and a model card, to upload
    swivel export glove.6B.300d.txt glove --format swivel           opens at once afterwards
    swivel export matrix counts.tsv --format triples --suppress-below 11
    """
    if file == "-":
        raise ConfigError("vectors are written to a file, not to standard output; pass the name of a file")
    if format == TRIPLES:
        refuse_idle_options(lambda name: name in ("side", "with_zeros"), where="on counts")
        _export_matrix(Path(vectors), file, suppress_below, options)
        return
    if suppress_below is not None:
        raise ConfigError(
            "suppress_below is for the counts of a matrix: pass format='triples'", argument="suppress_below"
        )
    model = open_vectors(vectors)
    count = formats.export(model, file, format=format, side=side, overwrite=options.overwrite, with_zeros=with_zeros)

    data = {"file": file, "tokens": count, "dim": model.dim}
    show(data, lambda: print_result(f"{file}: {count:,} vectors of {model.dim} dimensions"))


def _export_matrix(folder: Path, file: str, suppress_below: float | None, options: RunOptions) -> None:
    inside = folder / "matrix"
    matrix = open_matrix(inside if (inside / MANIFEST).exists() else folder)
    count = export_counts(matrix, file, suppress_below=suppress_below, overwrite=options.overwrite)
    left_out = "" if suppress_below is None else f"; counts below {suppress_below:g} were left out"
    show({"file": file, "counts": count}, lambda: print_result(f"{file}: {count:,} counts{left_out}"))

    limits = [limit for limit in (suppress_below, matrix.suppressed_below) if limit is not None]
    arguments = ["--suppressed-below", f"{max(limits):g}"] if limits else []
    if matrix.columns_per_row == 1:
        arguments += ["--sides", "undirected" if matrix.is_symmetric else "same"]
    options.progress.message(next_command("import", Path(file), *arguments, "-o", "matrix"))


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("file")
@output_option("file for the array, one row per line of the text", metavar="OUT.npy")
@click.option(
    "--smoothing",
    type=float,
    default=SMOOTHING,
    show_default=True,
    help="a in a / (a + p), the weight of a word with the share p of all tokens; inf: equal weights",
)
@click.option("--components", type=int, default=1, show_default=True, help="common components of all texts to remove")
@click.option("--tokenizer", help="icu, or module:function that returns the words of a text  [default: as in training]")
@click.option("--no-guess", is_flag=True, help="leave unknown words out instead of guessing them from their spelling")
@click.option("--normalize", is_flag=True, help="scale every vector to length 1")
@click.option("--encoding", help="encoding of the text  [default: as in the training]")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    help="what to do with bytes that are invalid in the encoding  [default: as in the training]",
)
@threads_option
@overwrite_option
def encode(
    vectors: str,
    file: str,
    output: str,
    smoothing: float,
    components: int,
    no_guess: bool,
    normalize: bool,
    tokenizer: str | None,
    encoding: str | None,
    errors: str | None,
    options: RunOptions,
) -> None:
    """Write one vector per line of FILE: a weighted mean of its words' vectors.

    FILE: a text (also .gz .bz2 .xz .zst), or - for standard input; a line is a text.

    \b
    swivel encode work/vectors reviews.txt -o reviews.npy
    """
    check_libraries("encoding")
    from swivel.corpus.streams import read_lines

    path = Path(output)
    # Before the text is read, which may take long.
    check_output_file(path, [Path(vectors), Path(file)], overwrite=options.overwrite)
    check_format(path, ["npy"], "arrays")

    model = open_vectors(vectors)
    reading = settings_of({"encoding": encoding, "errors": errors}, CorpusConfig)
    config = dataclasses.replace(find_tokenizer(model), **reading)
    encoded = model.encode(
        read_lines(file, config),
        smoothing=smoothing,
        components=components,
        guess=not no_guess,
        normalize=normalize,
        tokenizer=tokenizer,
        threads=options.thread_count,
    )
    # Usually the vectors are of another language, or lower-cased and the text is not.
    if len(encoded) and not encoded.any():
        options.progress.message(f"warning: no word of {file} is in the vocabulary, so all vectors are zero")
    with create_file(path) as stream:
        write_array(stream, encoded)

    texts, dim = encoded.shape
    show({"file": output, "texts": texts, "dim": dim}, lambda: print_result(f"{output}: {texts:,} x {dim}"))


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("other", required=False)
@click.option("--port", type=int, default=server.PORT, show_default=True, help="port to listen on; 0: any free one")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--no-browser", is_flag=True, help="only print the address, open nothing")
@click.option("--matrix", metavar="DIR", help="counts that VECTORS were trained on  [default: those of the same run]")
@map_options
def explore(
    vectors: str,
    other: str | None,
    port: int,
    host: str,
    no_browser: bool,
    matrix: str | None,
    clusters: int | None,
    color_by: str | None,
    options: RunOptions,
) -> None:
    """Serve a local web page that shows vectors; with OTHER, two models side by side.

    \b
    swivel explore work                       what `swivel run` wrote
    swivel explore glove.6B.300d.txt          or any file of another tool's
    swivel explore work glove.6B.300d.txt     side by side
    """
    server.check_extra()
    from swivel.explorer.queries import open_set

    message = options.progress.message
    # The port is taken before vectors are opened: that it is in use is said at once.
    with server.listen(host, port) as listener:
        sets = [open_set(vectors, matrix, clusters=clusters, color_by=color_by)]
        if other:
            sets.append(open_set(other, clusters=clusters, color_by=color_by))
        url = server.name_url(listener)
        names = " and ".join(each.name for each in sets)
        show({"url": url}, lambda: print_result(f"{names}: {url}"))

        if not server.is_loopback(host):
            message(f"warning: everyone who can reach {host} can read these vectors; there is no password")
        if no_browser or not webbrowser.open(url):
            message("open the address in a browser")
        message("Ctrl-C ends it")
        server.serve(sets, listener, host)
    message("stopped")


@cli.command(cls=Command)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--noise-baseline", metavar="C", help="a second training of A's text with another seed: what is only noise"
)
@click.option("-o", "--output", metavar="FILE", help="write every word compared here: .tsv or .json")
@count_option("how many words to show", default=20)
@config_options(comparison.CompareConfig)
def compare(
    before: str,
    after: str,
    noise_baseline: str | None,
    output: str | None,
    count: int,
    options: RunOptions,
    **settings: Any,
) -> None:
    """Which words that A and B share moved most, with their neighbors in A and in B.

    Every training turns its space its own way, so A is first rotated onto B by all the words they share. Words are
    ranked by how far their cosine lies below that of words as common as they are. With --noise-baseline C the table
    says, too, how alike words as common are in two trainings of one text.

    \b
    swivel compare 1900s/vectors 1990s/vectors
    swivel compare 1900s/vectors 1990s/vectors --noise-baseline 1900s/again -o moved.tsv
    """
    check_count(count)
    if output is not None:
        check_format(Path(output), comparison.FORMATS, "comparisons")
        refuse_overlap([Path(output)], [find_vectors(path) for path in (before, after, noise_baseline) if path])

    models = [open_vectors(path) for path in (before, after, noise_baseline) if path]
    before_and_after, baseline = models[:2], models[2:]
    result = comparison.compare(*before_and_after, noise_baseline=baseline[0] if baseline else None, **settings)
    if output is not None:
        result.write(output)

    show(result.to_dict(count), lambda: draw_comparison(result, count))
    # Vectors of other tools do not say what they were trained on.
    trained_on = [model.facts.get("matrix") for model in (models[0], *baseline)]
    if len(set(trained_on) - {None}) > 1:
        options.progress.message(
            "the noise baseline was trained on other counts than A: it shows more than the noise of training"
        )


def draw_comparison(result: comparison.ModelComparison, count: int) -> None:
    """Print a summary, then the words that differ most, each with its neighbors in both models."""
    print_result(f"{len(result):,} words compared: {_agreement(result.whole)}")
    if result.noise_baseline is not None:
        print_result(f"two trainings of one text: {_agreement(result.noise_baseline)}")

    words = result.words[:count]
    header = ["word", "cosine", "usual", "z", *(["same text", "z"] if result.noise_baseline else [])]
    first, *lines = align_table(header, [_cells(word) for word in words])
    print_result("", first)
    # Neighbors say in which sense a word moved, which no number does.
    for word, line in zip(words, lines, strict=True):
        neighbors_before = ", ".join(word.before[:SHOWN_NEIGHBORS])
        neighbors_after = ", ".join(word.after[:SHOWN_NEIGHBORS])
        print_result(line, f"    A: {neighbors_before}", f"    B: {neighbors_after}")


def _agreement(agreement: comparison.Agreement) -> str:
    return f"mean cosine {agreement.cosine:.3f}, {agreement.overlap:.0%} of their neighbors shared"


def _cells(word: comparison.Word) -> list[str]:
    cells = [word.word, f"{word.cosine:.3f}", f"{word.usual:.3f}", f"{word.rank_z:.1f}"]
    if word.same_text is not None and word.moved_z is not None:
        cells += [f"{word.same_text:.3f}", f"{word.moved_z:.1f}"]
    return cells
