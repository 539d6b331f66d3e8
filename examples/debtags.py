"""Tags for packages: those that a package lacks, and packages that are alike.

    python examples/debtags.py package_debtag.tsv gimp

The table has a line for each tag of a package: package, tag, 1, parted by tabs. A package that is not in it gets a
vector, too, from its first tags alone: pass the tags instead of a name.

    python examples/debtags.py package_debtag.tsv protocol::imap interface::text-mode
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import swivel

# All counts are 1: a cell says that a pair occurs, and nothing else. experiments/tables.md has the reasons for these.
SETTINGS: dict[str, Any] = {
    "recipe": "fast",
    "shift": -16,
    "unseen": 1e-6,
    "weight_decay": 0.03,
    "confidence_base": 4,
    "epochs": 50,
}


def main(table: str, *asked: str, dim: int = 64) -> None:
    """Train vectors of a table and print the tags that a package, or a set of tags, calls for."""
    matrix = swivel.import_counts(table)
    if asked[0] in matrix.rows:
        suggest_tags(matrix, swivel.train(matrix, dim=dim, **SETTINGS), asked[0])
    else:
        fold_tags(matrix, list(asked), dim)


def suggest_tags(matrix: swivel.Matrix, vectors: swivel.Vectors, package: str) -> None:
    """Print the packages that are most like a package, and the tags with the highest scores that it lacks."""
    print(f"like {package}:")
    for neighbor in vectors.nearest(package, count=6):
        print(f"  {neighbor.similarity:.2f} {neighbor.token}")
    print(f"tags that {package} lacks:")
    ranked = vectors.nearest(package, among="columns", count=len(matrix.columns))
    for neighbor in [other for other in ranked if not matrix.count(package, other.token)][:6]:
        print(f"  {neighbor.similarity:.2f} {neighbor.token}")


def fold_tags(matrix: swivel.Matrix, tags: list[str], dim: int) -> None:
    """Print the tags that go with some tags, as if these were a new package's."""
    embedding = swivel.SwivelEmbedding(dim, **SETTINGS).fit(matrix.to_scipy())
    counts = np.zeros((1, len(matrix.columns)))
    counts[0, [matrix.columns.id(tag) for tag in tags]] = 1
    scores = (embedding.transform(counts) @ embedding.column_vectors_.T)[0]
    print(f"tags that go with {', '.join(tags)}:")
    ranked = [number for number in np.argsort(-scores).tolist() if matrix.columns[number] not in tags]
    for number in ranked[:6]:
        print(f"  {scores[number] + SETTINGS['shift']:.2f} {matrix.columns[number]}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
