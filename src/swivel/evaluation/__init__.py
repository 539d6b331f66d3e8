"""Evaluation of vectors: word similarity, analogies, categories and texts, with confidence intervals and comparisons.

The default data sets and rules are those of the paper.
"""

from swivel.evaluation.bootstrap import rank_correlation as rank_correlation
from swivel.evaluation.datasets import AnalogySet as AnalogySet
from swivel.evaluation.datasets import CategorySet as CategorySet
from swivel.evaluation.datasets import SimilaritySet as SimilaritySet
from swivel.evaluation.datasets import find_sets as find_sets
from swivel.evaluation.datasets import read_bundled as read_bundled
from swivel.evaluation.datasets import read_set as read_set
from swivel.evaluation.datasets import split_set as split_set
from swivel.evaluation.download import PAPER_ORDER as PAPER_ORDER
from swivel.evaluation.download import fetch_sets as fetch_sets
from swivel.evaluation.results import DIFFERENCE_HEADER as DIFFERENCE_HEADER
from swivel.evaluation.results import MIN_KNOWN as MIN_KNOWN
from swivel.evaluation.results import TABLE_HEADER as TABLE_HEADER
from swivel.evaluation.results import Difference as Difference
from swivel.evaluation.results import EvaluationConfig as EvaluationConfig
from swivel.evaluation.results import Point as Point
from swivel.evaluation.results import Report as Report
from swivel.evaluation.results import SetResult as SetResult
from swivel.evaluation.results import bucket_by_frequency as bucket_by_frequency
from swivel.evaluation.results import compare_buckets as compare_buckets
from swivel.evaluation.results import compare_reports as compare_reports
from swivel.evaluation.results import draw_markdown as draw_markdown
from swivel.evaluation.results import tabulate_differences as tabulate_differences
from swivel.evaluation.scores import evaluate as evaluate
from swivel.evaluation.scores import read_sets as read_sets
from swivel.evaluation.scores import score_analogies as score_analogies
from swivel.evaluation.scores import score_categories as score_categories
from swivel.evaluation.scores import score_sets as score_sets
from swivel.evaluation.scores import score_similarity as score_similarity
from swivel.evaluation.scores import summarize_answers as summarize_answers
from swivel.evaluation.scores import summarize_pairs as summarize_pairs
from swivel.evaluation.table_ranking import RankingReport as RankingReport
from swivel.evaluation.table_ranking import evaluate_ranking as evaluate_ranking
from swivel.evaluation.table_ranking import split_table as split_table
from swivel.evaluation.text_sets import TEXT_TABLE_HEADER as TEXT_TABLE_HEADER
from swivel.evaluation.text_sets import evaluate_texts as evaluate_texts
from swivel.evaluation.text_sets import read_text_sets as read_text_sets
from swivel.evaluation.text_sets import score_texts as score_texts
