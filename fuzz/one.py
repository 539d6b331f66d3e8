"""One process that fuzzes one target: `python -m fuzz.one TARGET --work FOLDER --runs N --seed N`.

Hands on, in FOLDER/TARGET, the corpus that grew, a file for each finding (shortened) and what was wrong. Findings do
not stop it: each kind is kept once. What ends the process (a crash of a library, a hang, memory) leaves libFuzzer's own
file.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

import atheris

# Compiled by numba from their bytecode, which must stay as it was written.
COMPILED = [
    "swivel.corpus.tokenizer_kernels",
    "swivel.counts.cooccurrence.window_kernels",
    "swivel.counts.matrix_kernels",
    "swivel.training.backends",
]
MEMORY_BYTES = 1 << 30  # that an input may take beside what the process has
TIMEOUT_SECONDS = 20

with atheris.instrument_imports(include=["swivel"], exclude=COMPILED):
    from fuzz.guard import Target, execute, minimize, warm_up
    from fuzz.targets import TARGETS


class Fuzzer:
    """Runs inputs of one target and keeps what is wrong."""

    def __init__(self, target: Target, folder: Path, kept: Path) -> None:
        self.target, self.folder, self.kept = target, folder, kept
        self.signatures = {json.loads(file.read_text())["signature"] for file in kept.glob("*.json")}

    def run(self, data: bytes) -> None:
        found = execute(self.target, data, self.folder)
        if found is None or found.signature in self.signatures:
            return
        self.signatures.add(found.signature)
        small = minimize(self.target, data, self.folder)
        name = hashlib.sha256(found.signature.encode()).hexdigest()[:12]
        self.kept.mkdir(parents=True, exist_ok=True)
        (self.kept / f"{name}.bin").write_bytes(small)
        fields = {"signature": found.signature, "input": repr(small), "report": found.report}
        (self.kept / f"{name}.json").write_text(json.dumps(fields, indent=1))


def end_with_parent() -> None:
    """Have the system end this process when the one that started it ends, however it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def limit_memory() -> None:
    """Let an allocation beyond the bound fail: what asks for it is found, not only what fills it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))


def write_seeds(target: Target, seeds: list[bytes], corpus: Path) -> None:
    """Put the good inputs where the fuzzer finds them, and its words beside them."""
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    lines = ('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in target.words)
    (corpus.parent / "words").write_text("\n".join(lines) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    end_with_parent()
    target, work = TARGETS[given.target], given.work.resolve() / given.target
    # Left behind: the fuzzer ends the process. Whoever started it names a folder (TMPDIR) and removes that.
    folder, empty = (Path(tempfile.mkdtemp()).resolve() for _ in range(2))
    with atheris.instrument_imports(include=["swivel"], exclude=COMPILED):
        write_seeds(target, warm_up(target, empty), work / "corpus")
    fuzzer = Fuzzer(target, folder, work / "findings")
    limit_memory()
    flags = [f"-runs={given.runs}", f"-seed={given.seed}", f"-timeout={TIMEOUT_SECONDS}", "-rss_limit_mb=3072"]
    flags += [f"-artifact_prefix={work}/", "-max_len=4096", "-print_final_stats=1", f"-dict={work / 'words'}"]
    flags += ["-len_control=20", "-verbosity=1"]
    atheris.Setup([sys.argv[0], *flags, str(work / "corpus")], fuzzer.run)
    atheris.Fuzz()


if __name__ == "__main__":
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve far more than they use
    main()
