"""Writes the tables of the README, docs and experiments from the files in `benchmarks/results` (`make figures`).

A table stands between `<!-- figures: NAME -->` and `<!-- /figures -->` in a Markdown file and is made by the function
of that name in `TABLES`. With `--check` nothing is written, and the exit status is 1 if a file differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- figures: (\w+) -->\n.*?<!-- /figures -->", re.DOTALL)

MODELS = {"swivel": "Swivel `default`", "sgns": "SGNS, gensim", "fasttext": "FastText, gensim"}
WAYS = {
    "mean": "plain mean",
    "without_guesses": "weighted, common component removed",
    "encode": "and unknown words guessed",
}
SETS = {
    "ws353_similarity": "WS sim",
    "ws353_relatedness": "WS rel",
    "men": "MEN",
    "mturk": "MTurk",
    "rare_words": "Rare",
    "simlex999": "SimLex",
    "google_analogies": "Google",
    "msr_analogies": "MSR",
}
SWIVEL_ROWS = {
    "default_cuda": "Swivel `default`, GPU",
    "fast_cuda": "Swivel `fast`, GPU",
    "default_cpu": "Swivel `default`, CPU",
    "fast_cpu": "Swivel `fast`, CPU",
}
BASELINE_ROWS = {
    "sgns": "SGNS, gensim",
    "cbow": "CBOW, gensim",
    "glove": "GloVe",
    "svd": "SVD of PPMI",
}
# All methods on the first 40 MB of the corpus, where fastText can be trained within minutes.
SMALL_ROWS = {
    "default": "Swivel `default`",
    "fast": "Swivel `fast`",
    "sgns": "SGNS, gensim",
    "cbow": "CBOW, gensim",
    "fasttext": "fastText, gensim",
    "glove": "GloVe",
    "svd": "SVD of PPMI",
}
# Tables that were looked at only after the rule of the recipe was committed (3f6a956), and the others.
KEPT_APART = (
    "side_effects",
    "genes",
    "yahoo_movies",
    "yahoo_music",
    "amazon_music",
    "citeulike_t",
    "citeulike_tags",
)
SEEN = ("steam", "movietweetings")
RANKED = {
    "swivel": "Swivel, untuned",
    "als": "ALS",
    "ials": "iALS",
    "svd": "SVD of PPMI",
    "ease": "EASE",
    "popularity": "popularity",
}


@cache
def read_result(name: str) -> dict[str, Any]:
    """Return a result of a benchmark; "A/B" is the entry B of the file A."""
    title, _, entry = name.partition("/")
    data: dict[str, Any] = json.loads((RESULTS / f"{title}.json").read_text(encoding="utf-8"))
    return data[entry] if entry else data


def draw_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def turn(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a column for each row: what has many columns and few rows fits on a page then."""
    first, *others = zip(header, *rows, strict=True)
    return draw_table(first, others)


def draw_figure(value: float) -> str:
    """Return a figure between -1 and 1 as the paper prints it.

    >>> draw_figure(0.4567), draw_figure(-0.1)
    ('.457', '-.100')
    """
    return f"{value:.3f}".replace("0.", ".", 1)


def draw_seconds(seconds: float) -> str:
    """Return a duration with two or three digits.

    >>> [draw_seconds(value) for value in (0.0271, 3.14, 44.4, 734)]
    ['27 ms', '3.1 s', '44 s', '12.2 min']
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.1f} min"


def make_bold(rows: list[list[str]], columns: Iterable[int]) -> list[list[str]]:
    """Return rows with the largest figure of each column in bold."""
    marked = [list(row) for row in rows]
    for column in columns:
        best = max(rows, key=lambda row: float(row[column]))[column]
        for row in marked:
            if row[column] == best:
                row[column] = f"**{best}**"
    return marked


def describe_machine(result: dict[str, Any]) -> str:
    """Return where a row was measured, in a few words."""
    machine = result["machine"]
    gpu = machine.get("gpu") if result.get("device") == "cuda" else None
    cores = f"{result['threads']} cores"
    return f"{gpu.removeprefix('NVIDIA ')}, {cores}" if gpu else cores


def list_rows(title: str, labels: dict[str, str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return, for every entry of a result file that has a label, the label and the result."""
    results = read_result(title)
    return {name: (label, results[name]) for name, label in labels.items() if name in results}


def headline_rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the rows of the README's tables."""
    return list_rows("headline", {**SWIVEL_ROWS, **BASELINE_ROWS})


def headline() -> str:
    """Return the table of the README: what was run, how long it takes, how good the vectors are."""
    rows = []
    for label, result in headline_rows().values():
        rows.append(
            [
                label,
                describe_machine(result),
                draw_seconds(result["wall_seconds"]),
                draw_seconds(result["training_seconds"]),
                draw_seconds(result["cpu_seconds"]),
                str(len(result.get("seeds", [1]))),
                *(draw_figure(result["figures"]["whole"][key]) for key in SETS),
            ]
        )
    header = ["", "machine", "text to vectors", "of it training", "CPU time", "seeds", *SETS.values()]
    return turn(header, make_bold(rows, range(6, len(header))))


def performance() -> str:
    """Return the whole wait of methods that were measured on the same two cores, one after the other."""
    rows = []
    cbow = read_result("headline/cbow")
    for name in ("default_cpu", "fast_cpu", "cbow"):
        label, result = headline_rows()[name]
        if describe_cores(result) != describe_cores(cbow):
            continue  # Times of different machines cannot be compared.
        memory = result.get("private_bytes")
        rows.append(
            [
                label,
                draw_seconds(result["wall_seconds"]),
                f"{result['wall_seconds'] / cbow['wall_seconds']:.2f}",
                draw_seconds(result["training_seconds"]),
                draw_seconds(result["cpu_seconds"]),
                f"{memory / 2**30:.1f} GiB" if memory else "not measured",
            ]
        )
    header = ["", "text to vectors", "CBOW = 1", "of it training", "CPU time", "private memory"]
    return draw_table(header, rows)


def describe_cores(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must be the same for two times to be comparable."""
    machine = result["machine"]
    return machine["cpu"], machine["cores"], machine["date"], result["threads"]


def headline_sources() -> str:
    """Return one line per row of the README's table: what was run, on which machine, from which commit."""
    rows = []
    for name, (label, result) in headline_rows().items():
        machine = result["machine"]
        if name in SWIVEL_ROWS:
            what = f"`swivel run --recipe {result['recipe']} --device {result['device']} --threads {result['threads']}`"
        else:
            what = result["what"]
        where = f"{machine.get('gpu', '') + ', ' if result.get('device') == 'cuda' else ''}{machine['cpu']}"
        rows.append([label, what, where, f"{machine['commit']}, {machine['date']}"])
    return draw_table(["", "what was run", "machine", "commit, date"], rows)


def untuned_halves() -> str:
    """Return the figures on the items that no setting was chosen on."""
    rows = [
        [label, *(draw_figure(result["figures"]["report"][key]) for key in SETS)]
        for label, result in headline_rows().values()
    ]
    return turn(["untuned halves", *SETS.values()], make_bold(rows, range(1, len(SETS) + 1)))


COMPARED = {"default_cpu": "CPU", "default_cuda": "GPU"}  # methods of `benchmarks/significance.py`
HALF_TITLES = {"whole": "all items", "report": "untuned halves"}


def significance() -> str:
    """Return, for `default` and each baseline, for how many seeds each set differs significantly."""
    result = read_result("significance")
    rows = [
        [f"{device}, {BASELINE_ROWS[baseline]}, {title}"]
        + [draw_difference(result["compared"][f"{method}, {baseline}, {half}"][key]) for key in SETS]
        for method, device in COMPARED.items()
        for baseline in result["baseline_figures"]
        for half, title in HALF_TITLES.items()
    ]
    return draw_table([f"`default` minus; `significance.json`, {result['machine']['commit']}", *SETS.values()], rows)


def compared_baselines() -> str:
    """Return the figures of the trainings that `significance` compares with."""
    found = read_result("significance")["baseline_figures"]
    rows = [
        [f"{BASELINE_ROWS[baseline]}, {title}", *(draw_figure(figures[half][key]) for key in SETS)]
        for baseline, figures in found.items()
        for half, title in HALF_TITLES.items()
    ]
    return draw_table(["", *SETS.values()], rows)


def draw_difference(found: dict[str, Any]) -> str:
    """Return a difference and for how many seeds it is significant.

    >>> draw_difference({"seeds": 3, "mean_difference": 0.02, "seeds_significantly_above": 2})
    '+.020 (2 of 3)'
    """
    count = found["seeds_significantly_above" if found["mean_difference"] >= 0 else "seeds_significantly_below"]
    return f"{found['mean_difference']:+.3f} ({count} of {found['seeds']})".replace("0.", ".", 1)


def small_corpus() -> str:
    """Return the figures of all methods, fastText included, on the first part of the corpus."""
    rows = []
    for label, result in list_rows("small_corpus", SMALL_ROWS).values():
        figures = [draw_figure(result["figures"]["whole"][key]) for key in SETS]
        rows.append([label, draw_seconds(result["cpu_seconds"]), *figures])
    return turn(["", "CPU time", *SETS.values()], make_bold(rows, range(2, len(SETS) + 2)))


def gpu_speed() -> str:
    """Return the speed of training and counting on a GPU."""
    result = read_result("gpu/step")
    wide, paper, step = result["wide"], result["paper"], result["step"]
    counting, larger = result["counting"], read_result("gpu/larger")
    loops = {
        "24 x 24 blocks, d = 300": step,
        "97 x 97 blocks, d = 300": paper["loop"],
        "16 x 16 blocks, d = 1,024": wide,
    }
    rows = [["matrix rate of the device (8,192 x 8,192, bfloat16)", f"{result['matrix_rate'] / 1e12:.0f} TFLOP/s"]]
    for size, part in loops.items():
        speed = f"{part['loop_microseconds']:.0f} us, {part['share_of_matrix_rate']:.0%} of the matrix rate"
        rows.append([f"training step, {size}", f"{speed}; {part['loop_over_kernels']:.2f} x the kernels alone"])

    words = f"397,312 words, {paper['observed_cells'] / 1e9:.2f} billion observed cells, k = 4,096"
    ratios = [f"{larger[way]['ratio']:.2f} x" for way in ("cells streamed", "parameters swapped")]
    where = f"commit {larger['machine']['commit']}"
    rows += [
        ["cells per second at d = 1,024", f"{wide['cells_per_second'] / 1e9:.0f} billion"],
        [f"a million steps: {words}", f"{paper['all']['a_million_steps']:.0f} s"],
        ["GPU memory of that", f"{paper['all']['gpu_bytes'] / 1e9:.1f} GB"],
        [f"counting {counting['tokens'] / 1e9:.1f} billion tokens", draw_seconds(counting["seconds"]["total"])],
        [f"cells streamed from host memory, against everything on the device ({where})", ratios[0]],
        [f"parameters swapped with host memory, against everything on the device ({where})", ratios[1]],
    ]
    return draw_table(["", source_of("gpu/step")], rows)


def source_of(name: str) -> str:
    """Return machine, result file and commit."""
    machine = read_result(name)["machine"]
    where = machine.get("gpu") or machine["cpu"]
    return f"{where}; commit {machine['commit']}"


def scale_checks() -> str:
    """Return the model of cluster training beside real runs."""
    runs = read_result("scale")["runs"]
    counts = sorted({run["workers"] for run in runs})
    rows = []
    for mode, label in (("served", "workers around a server"), ("rotated", "ranks")):
        by_count = {run["workers"]: run for run in runs if run["mode"] == mode}
        cells = [f"{by_count[count]['seconds']:.2f}, {by_count[count]['model']:.2f}" for count in counts]
        rows.append([label, *cells])
    return draw_table([f"seconds of an epoch, and the model's; {source_of('scale')}", *map(str, counts)], rows)


def scale_rotation() -> str:
    """Return the modelled seconds of an epoch with rotation, by link and number of GPUs."""
    found = {(line["gbit"], line["gpus"]): line["rotated"] for line in projection() if line["block"] == 4096}
    rows = [[f"{gbit} Gbit/s", *(f"{found[gbit, gpus]:,.0f}" for gpus in (8, 64, 512))] for gbit in (10, 100, 400)]
    return draw_table(["rotation", "8 GPUs", "64 GPUs", "512 GPUs"], rows)


def scale_servers() -> str:
    """Return the modelled seconds of an epoch with servers, by block size and number of GPUs."""
    found = {(line["block"], line["gpus"]): line["served"] for line in projection() if line["gbit"] == 100}
    rows = [[f"k = {k:,}", *(f"{found[k, gpus]:,.0f}" for gpus in (8, 64, 512))] for k in (1024, 4096, 16384)]
    return draw_table(["servers, 100 Gbit/s", "8 GPUs", "64 GPUs", "512 GPUs"], rows)


def scale_millions() -> str:
    """Return what millions of rows take on one GPU."""
    result = read_result("gpu/millions")
    whole, large, part = (result[name]["all"] for name in ("whole", "large", "slice"))
    swapped = f"{part['swapped_over_resident']:.2f} x"
    rows = [
        ["2^21 x 2^21, `swivel train`, one epoch", draw_seconds(whole["seconds"])],
        ["of it training", draw_seconds(whole["training_seconds"])],
        ["its device memory", f"{whole['device_bytes'] / 1e9:.0f} GB"],
        ["2^23 x 2^23, loading", draw_seconds(sum(large["loading"]["seconds"].values()))],
        ["an epoch, from a part of its rounds", draw_seconds(large["seconds_per_epoch"])],
        ["its device memory", f"{large['loading']['device_bytes'] / 1e9:.0f} GB"],
        ["a part of 2^25 x 2^25, parameters swapped, against all on the device", swapped],
        ["an epoch of the whole, from that part", f"{part['hours_per_epoch']:.1f} hours"],
    ]
    return draw_table(["", source_of("gpu/millions")], rows)


def projection() -> list[dict[str, float]]:
    """Return the projection of `benchmarks/scale.py`."""
    found: list[dict[str, float]] = read_result("scale")["projection"]
    return found


def map_speed() -> str:
    """Return how long maps take, and how well they keep neighbors."""
    rows = []
    for part in ("demo", "large"):
        found = read_result("maps")[part]
        for label, each in (("Swivel", found), ("umap-learn", found.get("umap_learn"))):
            if each is not None:
                times = [draw_seconds(each[key]) for key in ("umap_seconds", "umap_cpu_seconds")]
                rows.append([f"{found['words']:,} words, {label}", *times, draw_figure(each["trustworthiness"])])
    return draw_table([source_of("maps"), "seconds", "CPU time", "trustworthiness"], rows)


def fault_tests() -> str:
    """Return the last long run of every test of faults."""
    results = read_result("faults")
    texts = results["limits_text"]["budget"]["texts"]
    crashes, kills, fuzz = results["crashes"], results["kills"], results["fuzz"]
    killed = f"{crashes['runs_bit_for_bit']} of {crashes['runs']} runs the same, bit for bit, {crashes['kills']} kills"
    on_cluster = f"{kills['runs_whole']} of {kills['runs']} runs complete, {kills['kills']} kills"
    ranks = results["kills_rotation"]
    rotated = f"{ranks['runs_bit_for_bit']} of {ranks['runs']} runs the same, bit for bit, {ranks['kills']} kills"
    peaks = [f"{text['disk_bytes'] / 1e6:,.1f} MB: {text['anonymous_bytes'] / 1e6:.0f} MB" for text in texts.values()]

    found = {
        "crash_points": ("killed before, in and after every file operation", results["crash_points"]["passed"]),
        "crashes": ("killed or interrupted at random moments", killed),
        "kills": ("workers, servers and commands of a cluster killed", on_cluster),
        "kills_rotation": ("ranks, nodes and commands of a cluster killed", rotated),
        "write_failures": ("every write failing in turn", results["write_failures"]["passed"]),
        "damage": ("damaged files", results["damage"]["found_or_harmless"]),
        "fuzz": ("hostile input", f"{fuzz['executions']:,} executions, {len(fuzz['findings'])} findings, mended"),
        "limits": ("verbs within less and less memory", results["limits"]["handled"]),
        "limits_text": ("memory of `count --memory 100MB`, by size of the file", "; ".join(peaks)),
        "containers": ("verbs in containers and as other users", results["containers"]["handled"]),
    }
    rows = [[*line, results[name]["machine"]["commit"]] for name, line in found.items()]
    return draw_table(["", "as promised", "commit"], rows)


def table_ranking() -> str:
    """Return Recall@20 / NDCG@20 of all methods on the tables that no rule was made on."""
    return draw_table(*compare_rankings(KEPT_APART))


def table_ranking_seen() -> str:
    """Return the same for tables that an older rule was measured on."""
    return draw_table(*compare_rankings(SEEN))


def compare_rankings(tables: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return Recall@20 / NDCG@20 of all methods on some tables: a header, and a row for each table."""
    found = read_result("ranking")["tables"]
    lines = []
    for title in tables:
        rows, columns = found[title]["shape"]
        density = found[title]["cells"] / (rows * columns)
        methods = found[title]["methods"]
        cells = [f"{title.replace('_', ' ')}, {rows:,} x {columns:,}, {100 * density:.2g} %"]
        lines.append([*cells, *(draw_pair(methods[name]["64"]) if name in methods else "" for name in RANKED)])
    return ["table", *RANKED.values()], lines


def draw_pair(found: dict[str, float]) -> str:
    return f"{draw_figure(found['recall'])} / {draw_figure(found['ndcg'])}"


def table_settings() -> str:
    """Return the settings that were chosen, the number that was tried, and CPU seconds of the longest fit."""
    chosen = {name: title for name, title in RANKED.items() if name != "popularity"}
    lines = []
    for title, table in read_result("ranking")["tables"].items():
        cells = [title.replace("_", " ")]
        for name in chosen:
            found = table["methods"].get(name, {}).get("64")
            settings = f"{found['settings']} ({found['tried']}), " if found and found["settings"] else ""
            cells.append(f"{settings}{found['cpu_seconds']:.1f} s" if found else "")
        lines.append(cells)
    return draw_table(["d = 64", *chosen.values()], lines)


def recommending_speed() -> str:
    """Return the time of the best columns for a million rows."""
    result = read_result("recommending")
    given = result["arguments"]
    lines = [
        [label, f"{result[name]['cpu_seconds']:.0f}"]
        for name, label in (("all", "all of it"), ("products_alone", "the products alone"))
    ]
    title = (
        f"a million rows, the best {given['count']} of {given['columns']:,} columns, d = {given['dim']}, without "
        f"{given['seen']} seen columns each; extrapolated from {given['rows']:,} rows"
    )
    return draw_table([title, f"CPU seconds, load {result['machine']['load_average']:.0f} on 2 cores"], lines)


def guessing_spelling() -> str:
    """Figures without and with a part of the vectors of rare words from their spelling."""
    result = read_result("guessing/spelling")
    recipe = result["recipe"]
    names = {"rare_words_all_pairs": "Rare, all pairs", **SETS}
    rows = [
        [label, draw_figure(recipe["plain"][name]), draw_figure(recipe["blended"][name])]
        for name, label in names.items()
    ]
    return draw_table(["", "without", f"with `spelling` {result['spelling']:g}"], rows)


def guessing_export() -> str:
    """Cosines of guesses from an exported fastText model with Swivel's own."""
    found = read_result("guessing/export")["export"]
    names = {
        "mean_cosine": "unseen words, mean",
        "cosine_of_the_worst_twentieth": "95 % of the unseen words are above",
        "lowest_cosine": "unseen words, lowest",
        "lowest_cosine_of_known_words": "known words, lowest",
    }
    return draw_table(["", "cosine"], [[label, draw_figure(found[name])] for name, label in names.items()])


def texts_sts() -> str:
    """Mean Spearman's rho on STS of three ways to make a vector of a text, for several vectors."""
    models = read_result("texts")["sts"]
    return draw_table(["", *WAYS.values()], [[MODELS[name], *_draw_ways(name, models[name])] for name in models])


def texts_labels() -> str:
    """Accuracy on each set of labels, of the same."""
    rows = [
        [f"{label.replace('_', ' ')}: {MODELS[model]}", *_draw_ways(model, figures)]
        for model, found in read_result("texts")["classification"].items()
        for label, figures in found["sets"].items()
    ]
    return draw_table(["", *WAYS.values()], sorted(rows, key=lambda row: row[0].split(":")[0]))


def _draw_ways(model: str, figures: dict[str, float]) -> list[str]:
    """Return a figure per way to make vectors; only Swivel's vectors have guesses."""
    return ["" if way == "encode" and model != "swivel" else draw_figure(figures[way]) for way in WAYS]


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        headline,
        performance,
        headline_sources,
        untuned_halves,
        significance,
        compared_baselines,
        small_corpus,
        gpu_speed,
        scale_checks,
        scale_millions,
        scale_rotation,
        scale_servers,
        map_speed,
        table_ranking,
        table_ranking_seen,
        table_settings,
        recommending_speed,
        fault_tests,
        guessing_spelling,
        guessing_export,
        texts_sts,
        texts_labels,
    )
}


def fill(text: str) -> str:
    """Return a Markdown text with its tables made anew."""

    def make(match: re.Match[str]) -> str:
        return f"<!-- figures: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- /figures -->"

    return BLOCK.sub(make, text)


def documents() -> list[Path]:
    """Return the Markdown files that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "experiments").glob("*.md"))]


def main() -> int:
    """Write the tables, or check them."""
    changed = []
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            changed.append(path)
            if "--check" not in sys.argv[1:]:
                path.write_text(after, encoding="utf-8")

    for path in changed:
        print(f"{path.relative_to(ROOT)}: tables differ from benchmarks/results")
    return int(bool(changed) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
