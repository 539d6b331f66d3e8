"""Which ingredients smell alike, and which compounds an ingredient may have that nobody noted.

    python examples/ingredients.py ingredient_compound.tsv garlic

The table has a line for each flavour compound found in an ingredient: ingredient, compound, 1, parted by tabs. One with
1,525 ingredients is in the supplement of Ahn et al., "Flavor network and the principles of food pairing" (2011).
"""

from __future__ import annotations

import sys
from typing import Any

import swivel

# All counts are 1: a cell says that a pair occurs, and nothing else. experiments/tables.md has the reasons for these.
SETTINGS: dict[str, Any] = {"recipe": "fast", "shift": -8, "unseen": 3e-4, "weight_decay": 0.01, "epochs": 50}


def main(table: str, ingredient: str, *, dim: int = 64) -> None:
    """Train vectors of a table and print what they say of an ingredient."""
    matrix = swivel.import_counts(table)
    vectors = swivel.train(matrix, dim=dim, **SETTINGS)
    print(f"like {ingredient}:")
    for neighbor in vectors.nearest(ingredient, count=6):
        print(f"  {neighbor.similarity:.2f} {neighbor.token}")
    print(f"compounds that {ingredient} is not noted for:")
    ranked = vectors.nearest(ingredient, among="columns", count=len(matrix.columns))
    for neighbor in [other for other in ranked if not matrix.count(ingredient, other.token)][:6]:
        print(f"  {neighbor.similarity:.2f} {neighbor.token}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
