"""Evaluation of vectors: word similarity, analogies and categories, with confidence intervals and comparisons.

The default data sets and rules are those of the paper.
"""

from swivel.evaluation.analogies import AnalogyResult, SectionResult, score_analogies, summarise_answers
from swivel.evaluation.by_frequency import Bucket, bucket_by_frequency, compare_buckets
from swivel.evaluation.categories import CategoryResult, score_categories
from swivel.evaluation.comparison import COMPARISON_HEADER, Comparison, compare_reports, tabulate_comparisons
from swivel.evaluation.config import EvaluationConfig
from swivel.evaluation.datasets import AnalogySet, CategorySet, Questions, SimilaritySet, find_sets, read_set
from swivel.evaluation.download import PAPER_ORDER, fetch_sets
from swivel.evaluation.report import TABLE_HEADER, Report, draw_markdown, evaluate, read_sets, score_sets
from swivel.evaluation.similarity import SimilarityResult, rank_correlation, score_similarity, summarise_pairs
from swivel.evaluation.splits import split_set

__all__ = [
    "COMPARISON_HEADER",
    "PAPER_ORDER",
    "TABLE_HEADER",
    "AnalogyResult",
    "AnalogySet",
    "Bucket",
    "CategoryResult",
    "CategorySet",
    "Comparison",
    "Questions",
    "Report",
    "EvaluationConfig",
    "SectionResult",
    "SimilarityResult",
    "SimilaritySet",
    "bucket_by_frequency",
    "compare_buckets",
    "compare_reports",
    "draw_markdown",
    "evaluate",
    "fetch_sets",
    "find_sets",
    "rank_correlation",
    "read_set",
    "read_sets",
    "score_analogies",
    "score_categories",
    "score_sets",
    "score_similarity",
    "split_set",
    "summarise_answers",
    "summarise_pairs",
    "tabulate_comparisons",
]
