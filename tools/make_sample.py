"""Make the bundled sample: the whole co-occurrence matrix of the commonest words of a corpus, packed.

    python tools/make_sample.py CORPUS... --words 5632

Counts are facts; no text goes into the package.
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import swivel
from swivel.pipeline.demo import CELLS, SMALLEST, STEPS_PER_OCTAVE, WORDS
from swivel.storage.files import write_file

HERE = Path(__file__).resolve().parent.parent / "src" / "swivel" / "data"


def pack_cells(counts: NDArray[np.float64]) -> bytes:
    """Pack a symmetric dense matrix of counts."""
    triangle = counts[np.triu_indices(len(counts))]
    seen = triangle > 0
    codes = np.rint(STEPS_PER_OCTAVE * np.log2(triangle[seen])) - SMALLEST
    data = np.packbits(seen).tobytes() + np.clip(codes, 0, 255).astype(np.uint8).tobytes()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}]
    return lzma.compress(data, filters=filters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="+", type=Path)
    parser.add_argument("--words", type=int, default=5632)
    arguments = parser.parse_args()
    # The words next to the commonest ones are counted around, not through: out-of-vocabulary tokens keep their place.
    matrix = swivel.count(arguments.corpus, columns="symmetric", max_size=arguments.words, oov="gap")
    packed = pack_cells(matrix.to_scipy().toarray())
    write_file(HERE / CELLS, packed)
    write_file(HERE / WORDS, "".join(line + "\n" for line in matrix.rows.to_lines()).encode())
    print(f"{len(matrix.rows):,} words, {matrix.cell_count:,} cells, {len(packed):,} bytes")


if __name__ == "__main__":
    main()
