"""How good vectors are: word similarity and analogies under the paper's rules.

Receives `Vectors` and files of test sets, hands on a `Report` of figures. It prints nothing and downloads nothing.
"""

from swivel.evaluation.analogies import AnalogyResult, SectionResult, score_analogies
from swivel.evaluation.datasets import AnalogySet, Questions, SimilaritySet, find_sets, read_set
from swivel.evaluation.report import TABLE_HEADER, Report, evaluate
from swivel.evaluation.similarity import SimilarityResult, rank_correlation, score_similarity

__all__ = [
    "TABLE_HEADER",
    "AnalogyResult",
    "AnalogySet",
    "Questions",
    "Report",
    "SectionResult",
    "SimilarityResult",
    "SimilaritySet",
    "evaluate",
    "find_sets",
    "rank_correlation",
    "read_set",
    "score_analogies",
    "score_similarity",
]
