"""Make the bundled sample: the whole co-occurrence matrix of the commonest words of a corpus, packed.

    python tools/make_sample.py CORPUS... --words 5632

Counts are facts; no text goes into the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import swivel
from swivel.pipeline.demo import CELLS, WORDS, pack_cells
from swivel.storage import write_file

HERE = Path(__file__).resolve().parent.parent / "src" / "swivel" / "data"


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
