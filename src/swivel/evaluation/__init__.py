"""Evaluation of vectors: word similarity, analogies, categories and texts, with confidence intervals and comparisons.

The default data sets and rules are those of the paper.
"""

from swivel.evaluation.bootstrap import rank_correlation
from swivel.evaluation.by_frequency import Point, bucket_by_frequency, compare_buckets
from swivel.evaluation.datasets import (
    AnalogySet,
    CategorySet,
    SimilaritySet,
    find_sets,
    read_bundled,
    read_set,
    split_set,
)
from swivel.evaluation.differences import DIFFERENCE_HEADER, Difference, compare_reports, tabulate_differences
from swivel.evaluation.download import PAPER_ORDER, fetch_sets
from swivel.evaluation.results import (
    MIN_KNOWN,
    TABLE_HEADER,
    AnalogyResult,
    CategoryResult,
    Report,
    SectionResult,
    SimilarityResult,
    draw_markdown,
)
from swivel.evaluation.rules import EvaluationConfig
from swivel.evaluation.scores import (
    evaluate,
    read_sets,
    score_analogies,
    score_categories,
    score_sets,
    score_similarity,
    summarize_answers,
    summarize_pairs,
)
from swivel.evaluation.table_ranking import RankingReport, evaluate_ranking, split_table
from swivel.evaluation.text_sets import (
    TEXT_TABLE_HEADER,
    TextReport,
    TextResult,
    evaluate_texts,
    read_text_sets,
    score_texts,
)

__all__ = [
    "DIFFERENCE_HEADER",
    "MIN_KNOWN",
    "PAPER_ORDER",
    "TABLE_HEADER",
    "TEXT_TABLE_HEADER",
    "AnalogyResult",
    "AnalogySet",
    "CategoryResult",
    "CategorySet",
    "Difference",
    "Point",
    "RankingReport",
    "Report",
    "EvaluationConfig",
    "SectionResult",
    "SimilarityResult",
    "SimilaritySet",
    "TextReport",
    "TextResult",
    "bucket_by_frequency",
    "compare_buckets",
    "compare_reports",
    "draw_markdown",
    "evaluate",
    "evaluate_ranking",
    "evaluate_texts",
    "fetch_sets",
    "find_sets",
    "rank_correlation",
    "read_bundled",
    "read_set",
    "read_sets",
    "read_text_sets",
    "score_analogies",
    "score_categories",
    "score_sets",
    "score_similarity",
    "score_texts",
    "split_set",
    "split_table",
    "summarize_answers",
    "summarize_pairs",
    "tabulate_differences",
]
