"""Evaluation of vectors: word similarity, analogies, categories and texts, with confidence intervals and comparisons.

The default data sets and rules are those of the paper.
"""

from swivel.evaluation.datasets import AnalogySet as AnalogySet
from swivel.evaluation.datasets import CategorySet as CategorySet
from swivel.evaluation.datasets import SimilaritySet as SimilaritySet
from swivel.evaluation.datasets import read_set as read_set
from swivel.evaluation.labels import evaluate_labels as evaluate_labels
from swivel.evaluation.links import evaluate_links as evaluate_links
from swivel.evaluation.results import EvaluationConfig as EvaluationConfig
from swivel.evaluation.results import Report as Report
from swivel.evaluation.results import SetResult as SetResult
from swivel.evaluation.results import compare_reports as compare_reports
from swivel.evaluation.scores import evaluate as evaluate
from swivel.evaluation.scores import summarize_answers as summarize_answers
from swivel.evaluation.scores import summarize_pairs as summarize_pairs
from swivel.evaluation.table_ranking import evaluate_ranking as evaluate_ranking
from swivel.evaluation.table_ranking import split_table as split_table
from swivel.evaluation.text_sets import evaluate_texts as evaluate_texts
