"""The explorer over 100,000 words of 300 dimensions, rows and columns, synthetic unless `--vectors` names some.

Goals, on 2 cores: every answer in 50 ms (p95), the page usable within 1 s and below 500 kB, 50 clients at once for a
minute without an error. Questions are asked over one kept connection, each with other words; the page is timed in
Chromium where there is one, from the request to the table of neighbors. UMAP is not computed meanwhile, but after
all else, as the server computes it. A smoke run leaves UMAP and the browser out.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from common import keep, make_parser, parse_arguments, work_folder
from swivel.corpus.vocabulary import Vocabulary
from swivel.explorer import server
from swivel.explorer.maps import compute_in_process
from swivel.explorer.queries import open_set
from swivel.explorer.server import listen, serve, warm
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.search import Floats

MEASURES = (
    "swivel.explorer.app",
    "swivel.explorer.queries",
    "swivel.explorer.speller",
    "swivel.vectors.search",
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--vectors", help="vectors to serve instead of synthetic ones")
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--requests", type=int, default=100, help="of each kind")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--without-map", action="store_true", help="do not compute UMAP")
    parser.add_argument("--without-browser", action="store_true", help="do not time the page in Chromium")
    tiny = {"words": 300, "dim": 8, "requests": 2, "clients": 2, "seconds": 0.2}
    arguments = parse_arguments(parser, **tiny, without_map=True, without_browser=True)

    with tempfile.TemporaryDirectory(dir=work_folder()) as folder:
        path = arguments.vectors or make_vectors(Path(folder) / "vectors", arguments.words, arguments.dim)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run_server, args=(str(path), theirs), daemon=True)
        process.start()
        started = ours.recv()
        result = measure(arguments, started)
        process.terminate()
        process.join()
        if not arguments.without_map:
            result["umap_seconds"] = time_umap(path)

    keep(arguments, {"words": started["words"], "dim": started["dim"], **result})


def make_vectors(path: Path, words: int, dim: int) -> Path:
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    labels = {"".join(letters[rng.integers(0, 12, 3 + rng.integers(0, 7))]): None for _ in range(2 * words)}
    tokens = list(labels)[:words]
    vocabulary = Vocabulary(tokens, [10_000_000 // (rank + 10) for rank in range(len(tokens))])
    sides = [VectorTable(vocabulary, rng.standard_normal((len(tokens), dim), dtype=np.float32)) for _ in range(2)]
    Vectors(*sides, vectors=sides[0].values + sides[1].values, columns_per_row=1).save(path)
    return path


def time_umap(path: str | Path) -> dict[str, float]:
    """Return the seconds until the principal components of a map are there, and then its places by UMAP."""
    made = open_set(str(path)).view("").map
    began = time.perf_counter()
    components = made.components
    there = time.perf_counter()
    points = compute_in_process(components)
    print("umap of", len(points), "words")
    return {"components": round(there - began, 2), "umap": round(time.perf_counter() - there, 1)}


def run_server(path: str, answers: Connection) -> None:
    def never(components: Floats) -> Floats:
        threading.Event().wait()
        raise AssertionError

    began = time.perf_counter()
    with listen("127.0.0.1", 0) as listener:
        chosen = open_set(path)
        opened = time.perf_counter()
        chosen.view("").map.compute = never
        warm([chosen])
        started = {
            "pid": os.getpid(),
            "port": listener.getsockname()[1],
            "words": len(chosen.vectors),
            "dim": chosen.vectors.dim,
            "tokens": [chosen.vectors.vocabulary[n] for n in range(0, min(len(chosen.vectors), 20_000), 37)],
            "open_seconds": opened - began,
            "warm_seconds": time.perf_counter() - opened,
        }
        answers.send(started)
        serve([chosen], listener, "127.0.0.1")


def measure(arguments: argparse.Namespace, started: dict[str, Any]) -> dict[str, Any]:
    port, tokens = started["port"], started["tokens"]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    result: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)} | {
        name: round(started[name], 3) for name in ("open_seconds", "warm_seconds")
    }
    for name, paths in list_questions(tokens).items():
        times, spent = [], cpu_seconds(started["pid"])
        for _ in range(arguments.requests):
            began = time.perf_counter()
            ask(connection, next(paths))
            times.append(1_000 * (time.perf_counter() - began))
        spent = 1_000 * (cpu_seconds(started["pid"]) - spent) / arguments.requests
        result[name] = {
            "p50_ms": round(statistics.median(times), 1),
            "p95_ms": round(quantile(times, 0.95), 1),
            "least_ms": round(min(times), 1),
            "cpu_ms": round(spent, 1),
        }
        print(f"{name:>12}  {result[name]}")
    result["page_bytes"] = sum(file.stat().st_size for file in (Path(server.__file__).parent / "page").iterdir())
    result["page_usable_seconds"] = None if arguments.without_browser else time_page(port, tokens)
    result["crowd"] = crowd(port, tokens, arguments.clients, arguments.seconds)
    print(result["page_bytes"], "bytes;", result["page_usable_seconds"], "s;", result["crowd"])
    return result


def list_questions(tokens: list[str]) -> dict[str, Iterator[str]]:
    """Return endless addresses, by kind, each with words of its own."""

    def turn(template: Callable[[str, str, str], str]) -> Iterator[str]:
        number = 0
        while True:
            a, b, c = (quote(tokens[(number * 3 + k) % len(tokens)]) for k in range(3))
            yield template(a, b, c)
            number += 1

    return {
        "sets": turn(lambda a, b, c: "/api/sets"),
        "suggest": turn(lambda a, b, c: f"/api/suggest?q={a[:3]}"),
        "misspelt": turn(lambda a, b, c: f"/api/suggest?q={a[1:]}x"),
        "nearest": turn(lambda a, b, c: f"/api/nearest?q={a}&count=20"),
        "expression": turn(lambda a, b, c: f"/api/nearest?plus={a}&plus={b}&minus={c}&count=20"),
        "analogy": turn(lambda a, b, c: f"/api/analogy?word={a}&word={b}&word={c}&count=10"),
        "columns": turn(lambda a, b, c: f"/api/columns?q={a}&count=20"),
        "compare": turn(lambda a, b, c: f"/api/compare?a={a}&b={b}&count=20"),
        "map": turn(lambda a, b, c: "/api/map"),
        "points": turn(lambda a, b, c: "/api/map/points"),
        "labels": turn(lambda a, b, c: "/api/map/labels"),
    }


def ask(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    size = len(answer.read())
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return size


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, all its threads: what a busy machine does not change (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share))


def time_page(port: int, tokens: list[str]) -> float | None:
    """Return the seconds from asking for the page to seeing neighbors in it; None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for token in tokens[:5]:
            page = browser.new_page()
            began = time.perf_counter()
            page.goto(f"http://127.0.0.1:{port}/?{urlencode({'q': token})}", wait_until="commit")
            page.wait_for_selector("#results tbody tr")
            times.append(time.perf_counter() - began)
            page.close()
        browser.close()
    return round(statistics.median(times), 3)


def crowd(port: int, tokens: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """Let many clients ask at once, each one question after the other; they are as many threads of this process."""
    kinds = ("suggest", "nearest", "analogy", "columns", "compare", "map")
    until, times, errors = time.perf_counter() + seconds, [], []

    def visit(number: int) -> None:
        mine = tokens[number:] + tokens[:number]
        questions = list_questions(mine)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for turn in range(1_000_000):
            began = time.perf_counter()
            if turn and began > until:
                return
            try:
                ask(connection, next(questions[kinds[(turn + number) % len(kinds)]]))
                times.append(1_000 * (time.perf_counter() - began))
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                errors.append(str(error))
                connection.close()

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": len(times),
        "errors": len(errors),
        "first_errors": errors[:3],
        "p50_ms": round(statistics.median(times), 1),
        "p95_ms": round(quantile(times, 0.95), 1),
    }


if __name__ == "__main__":
    main()
