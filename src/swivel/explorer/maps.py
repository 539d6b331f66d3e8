"""Maps of views, made in the background and kept on disk.

Receives views, hands on places, clusters and the state of what is still being computed. The principal components are
there at once; UMAP takes minutes for 100,000 words, in a process of its own, and is kept in the user's cache under the
fingerprint of the vectors. It draws nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import StorageError, SwivelError
from swivel.explorer.limits import MOST_POINTS
from swivel.explorer.models import View
from swivel.explorer.projection import UMAP, Clusters, Floats, Reduced, find_clusters, reduce_vectors, run_umap
from swivel.storage import fingerprint, write_file

_POLL_SECONDS = 0.2
_STOP_SECONDS = 1.0
_MISSING = "UMAP needs umap-learn: pip install 'swivel-embeddings[explore]'"

Compute = Callable[[Reduced, threading.Event], Floats]


class Stopped(SwivelError):
    """The server ended before a map did."""


def cache_folder() -> Path:
    """Return the folder for maps in the user's cache."""
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "swivel" / "maps"


def compute_in_process(reduced: Reduced, stop: threading.Event) -> Floats:
    """Return UMAP's places from a process of its own, which is ended when `stop` is set."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_umap, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.send(reduced.values)  # Not as an argument: a process that dies before it has read those leaves us waiting.
        while not ours.poll(_POLL_SECONDS):
            if stop.is_set():
                raise Stopped("the server ended before the map did")
        answer = ours.recv()
    except (EOFError, ConnectionError):
        raise SwivelError("the process that computed the map ended early: is there enough memory?") from None
    finally:
        process.terminate()
        process.join()
        ours.close()
    if isinstance(answer, str):
        raise SwivelError(answer)
    return np.asarray(answer, np.float32)


class Map:
    """The map of one view: its first 100,000 labels by frequency."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.umap: Floats | None = None
        self.clusters: Clusters | None = None
        self.problem = ""
        self.began = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return min(len(self.view.vectors), MOST_POINTS)

    @cached_property
    def _reduced(self) -> Reduced:
        return reduce_vectors(self.view.vectors.unit_vectors[: len(self)])

    @property
    def reduced(self) -> Reduced:
        """The vectors along their main axes; threads that come meanwhile wait."""
        with self._lock:
            return self._reduced

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what the map is made from: vectors and settings."""
        digest = hashlib.sha256(np.ascontiguousarray(self.view.vectors.vectors[: len(self)]).view(np.uint8).data)
        return fingerprint({"vectors": digest.hexdigest(), "umap": UMAP})

    def points(self, layout: str) -> Floats | None:
        """Return places (n, 2), None where they are not there yet."""
        return self.umap if layout == "umap" else self.reduced.points

    def describe(self) -> dict[str, Any]:
        """Return the state: what is there, what is being computed, what the clusters are."""
        state = "ready" if self.umap is not None else "missing" if self.problem else "computing"
        return {
            "points": len(self),
            "total": len(self.view.vectors),
            "umap": state,
            "problem": self.problem,
            "seconds": round(time.monotonic() - self.began, 1) if self.began and state == "computing" else 0,
            "clusters": self._describe_clusters(),
        }

    def _describe_clusters(self) -> list[dict[str, Any]] | None:
        if self.clusters is None:
            return None
        sizes = np.bincount(self.clusters.numbers, minlength=len(self.clusters.typical)).tolist()
        tokens = self.view.vectors.vocabulary.tokens
        return [
            {"size": size, "typical": [tokens[number] for number in typical]}
            for size, typical in zip(sizes, self.clusters.typical, strict=True)
        ]


class MapMaker:
    """Makes maps in background threads, UMAP of one after the other, and keeps them.

    Parameters
    ----------
    cache
        Folder for finished maps; None keeps nothing.
    compute
        What computes UMAP's places; another function in tests.
    """

    def __init__(self, cache: Path | None, compute: Compute = compute_in_process) -> None:
        self._cache = cache
        self._compute = compute
        self._maps: dict[int, Map] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._stop = threading.Event()

    def map_of(self, view: View) -> Map:
        """Return the map of a view, and begin to make it when it is asked for the first time."""
        with self._lock:
            if id(view) not in self._maps:
                self._maps[id(view)] = Map(view)
                self._threads.append(threading.Thread(target=self._make, args=(self._maps[id(view)],), daemon=True))
                self._threads[-1].start()
            return self._maps[id(view)]

    def stop(self) -> None:
        """End what is being computed, and wait until its process is gone: a signal may end ours right after."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _make(self, made: Map) -> None:
        if self._stop.is_set():
            return
        try:
            made.clusters = find_clusters(made.reduced)
            with self._turn:  # Two at once would take the cores from the answers.
                made.began = time.monotonic()
                made.umap = self._recall(made)
        except SwivelError as error:
            made.problem = str(error)
        except Exception as error:  # a thread has nobody to tell but the page
            made.problem = f"{type(error).__name__}: {error}"

    def _recall(self, made: Map) -> Floats:
        """Return UMAP's places from the cache, else compute and keep them."""
        file = None if self._cache is None else self._cache / f"{made.fingerprint}.npy"
        points = None if file is None else _read_points(file, len(made))
        if points is not None:
            return points
        if self._compute is compute_in_process and importlib.util.find_spec("umap") is None:
            raise SwivelError(_MISSING)
        points = self._compute(made.reduced, self._stop)
        if file is not None:
            _keep_points(file, points)
        return points


def _read_points(file: Path, count: int) -> Floats | None:
    """Return kept places, None where there are none or what is there cannot be used."""
    try:
        with file.open("rb") as opened:
            points = np.asarray(np.lib.format.read_array(opened, allow_pickle=False), np.float32)
    except (OSError, ValueError, EOFError):
        return None
    return points if points.shape == (count, 2) and np.isfinite(points).all() else None


def _keep_points(file: Path, points: Floats) -> None:
    data = io.BytesIO()
    np.lib.format.write_array(data, points, allow_pickle=False)
    try:
        write_file(file, data.getvalue())
    except (StorageError, OSError):
        return  # A full or read-only disk costs the next start some minutes, and this one nothing.
