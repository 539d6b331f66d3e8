"""Golden recipes: every setting of every recipe, what follows from the settings, and every tuned constant, as literals.

The numbers of this file were measured (experiments/notes.md and experiments/tables.md), and the benchmarks do not
notice if one of them changes a little. Here a change is a deliberate edit: change the code and this file in one commit,
with the measurement. If a module moves, change its name in `CONSTANTS` only.
"""

from __future__ import annotations

import importlib
import math
import operator
import random
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import torch

import swivel
from swivel.config import RECIPES, STAGES, TrainConfig, stage_config
from swivel.counts.block_layout import choose_layout
from swivel.pipeline.train import resolve_configs
from swivel.training import training_plan as planning
from swivel.training.table_settings import choose_popularity

WITHOUT_ENTRY = {"glove"}  # a baseline, not a recipe of ours
NAMES = ("paper", "fast", "default", "table", "graph")

# Every field of every stage, one value per recipe in the order of NAMES.
SETTINGS: dict[str, dict[str, tuple[Any, Any, Any, Any, Any]]] = {
    "corpus": {
        "tokenizer": ("auto", "auto", "auto", "auto", "auto"),
        "normalization": ("NFC", "NFC", "NFC", "NFC", "NFC"),
        "turkish": (False, False, False, False, False),
        "unit": ("sentence", "line", "line", "line", "line"),
        "lowercase": (True, True, True, True, True),
        "keep_underscores": (False, False, False, False, False),
        "encoding": ("utf-8", "utf-8", "utf-8", "utf-8", "utf-8"),
        "errors": ("strict", "strict", "strict", "strict", "strict"),
        "phrases": ("none", "none", "none", "none", "none"),
        "phrase_threshold": (None, None, None, None, None),
        "phrase_min_count": (5, 5, 5, 5, 5),
        "phrase_passes": (1, 1, 1, 1, 1),
    },
    "vocabulary": {
        "min_count": (5, 5, 5, 5, 5),
        "max_size": (98_304, 98_304, 98_304, 98_304, 98_304),
        "words_only": (False, False, False, False, False),
    },
    "count": {
        "window": (10, 10, 10, 10, 10),
        "left": (None, None, None, None, None),
        "right": (None, None, None, None, None),
        "weight": ("harmonic", "harmonic", "harmonic", "harmonic", "harmonic"),
        "columns": ("symmetric", "symmetric", "directional-bands", "symmetric", "symmetric"),
        "near": (1, 1, 1, 1, 1),
        "oov": ("drop", "drop", "drop", "drop", "drop"),
        "device": ("auto", "auto", "auto", "auto", "auto"),
        "device_memory": (None, None, None, None, None),
    },
    "train": {
        "dim": (300, 300, 300, 256, 128),
        "epochs": (100, None, None, None, None),
        "updates_per_vector": (480, 288, 288, 480, 288),
        "block_size": (4096, None, None, None, None),
        "largest_block": (None, None, None, None, None),
        "learning_rate": (0.1, 0.09, 0.09, 0.5, 0.09),
        "initial_accumulator": (1e-6, 1e-6, 1e-6, 1e-6, 1e-6),
        "accumulator_decay": (1.0, 0.9, 0.9, 0.95, 0.9),
        "weight_decay": (0.0, 1e-4, 5e-5, 0.0, 1e-4),
        "decay_power": (0.0, 0.0, 0.0, 0.5, 0.0),
        "stop": ("converged", "epochs", "epochs", "epochs", "epochs"),
        "tolerance": (0.002, 0.002, 0.002, 0.002, 0.002),
        "zeros": ("all", "auto", "auto", "auto", "auto"),
        "zeros_common": (0.03, 0.03, 0.03, 0.05, 0.03),
        "zeros_middle": (0.3, 0.2, 0.2, 0.2, 0.2),
        "zeros_share": (0.008, 0.006, 0.004, 0.01, 0.006),
        "sample_rows": (None, None, None, 512, None),
        "transform": ("none", "none", "none", "log", "none"),
        "shift": (0.0, 0.0, 0.0, -4.0, 0.0),
        "confidence_base": (0.1, 0.1, 0.1, 1.2, 0.1),
        "confidence_scale": (0.25, 0.25, 0.25, 0.0, 0.25),
        "confidence_power": (0.5, 0.5, 0.5, 0.5, 0.5),
        "unseen": (1.0, 1.0, 1.0, 1.0, 1.0),
        "dtype": ("auto", "auto", "auto", "auto", "auto"),
        "backend": ("auto", "auto", "auto", "auto", "auto"),
        "device": ("auto", "auto", "auto", "auto", "auto"),
        "device_memory": (None, None, None, None, None),
        "ranks": (None, None, None, None, None),
        "seed": (1, 1, 1, 1, 1),
        "checkpoint_minutes": (5.0, 5.0, 5.0, 5.0, 5.0),
    },
    "vectors": {
        "combine": ("sum", "sum", "parts", "rows", "sum"),
        "column_weight": (0.5, 0.5, 0.5, 0.5, 0.5),
        "sum_weight": (1.0, 1.0, 1.0, 1.0, 1.0),
        "spectrum": (0.8, 0.8, 0.8, 0.8, 0.8),
        "subwords": ("none", "ngrams", "ngrams", "none", "none"),
        "spelling": (0.0, 0.0, 100.0, 0.0, 0.0),
    },
}

# Fields of settings that no recipe has.
OTHER_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "swivel.vectors.comparison": {"CompareConfig": {"top": 20_000, "min_count": 20, "neighbors": 10}},
    "swivel.counts.importers.import_config": {
        "ImportConfig": {
            "format": None,
            "sides": None,
            "fields": None,
            "header": None,
            "separator": None,
            "comment": None,
            "largest_basket": 5_000,
            "by": None,
            "code": None,
            "time": None,
            "within": None,
            "counting": "persons",
            "suppressed_below": None,
            "drop_empty": False,
        },
        "WalkConfig": {
            "walks": None,
            "step_weights": "uniform",
            "smallest_count": None,
            "walks_per_node": None,
            "p": 1.0,
            "q": 1.0,
            "walk_seed": 1,
        },
    },
}


class Plan(NamedTuple):
    """What follows from a recipe, the size of a matrix and the device."""

    blocks: str  # row blocks x column blocks
    block_size: str  # rows x columns of the largest block
    epochs: int
    zeros: str  # all; or the shares `common`, `middle` and `share`, and how much of a block is computed


# Plans of matrices of words: recipe, rows, columns per row, device.
PLANS: dict[tuple[str, int, int, str], Plan] = {
    ("paper", 8_192, 1, "cpu"): Plan("2 x 2", "4096 x 4096", 100, "all"),
    ("paper", 8_192, 1, "cuda"): Plan("2 x 2", "4096 x 4096", 100, "all"),
    ("paper", 32_768, 1, "cpu"): Plan("8 x 8", "4096 x 4096", 100, "all"),
    ("paper", 32_768, 1, "cuda"): Plan("8 x 8", "4096 x 4096", 100, "all"),
    ("paper", 98_304, 1, "cpu"): Plan("24 x 24", "4096 x 4096", 100, "all"),
    ("paper", 98_304, 1, "cuda"): Plan("24 x 24", "4096 x 4096", 100, "all"),
    ("paper", 400_000, 1, "cpu"): Plan("98 x 98", "4082 x 4082", 100, "all"),
    ("paper", 400_000, 1, "cuda"): Plan("98 x 98", "4082 x 4082", 100, "all"),
    ("fast", 8_192, 1, "cpu"): Plan("32 x 32", "256 x 256", 9, "0.03, 0.2, 0.006: 15.01 %"),
    ("fast", 8_192, 1, "cuda"): Plan("16 x 16", "512 x 512", 18, "all"),
    ("fast", 32_768, 1, "cpu"): Plan("64 x 64", "512 x 512", 4, "0.03, 0.2, 0.006: 15.24 %"),
    ("fast", 32_768, 1, "cuda"): Plan("16 x 16", "2048 x 2048", 18, "all"),
    ("fast", 98_304, 1, "cpu"): Plan("96 x 96", "1024 x 1024", 4, "0.03, 0.2, 0.006: 15.32 %"),
    ("fast", 98_304, 1, "cuda"): Plan("24 x 24", "4096 x 4096", 12, "all"),
    ("fast", 400_000, 1, "cpu"): Plan("391 x 391", "1024 x 1024", 4, "0.03, 0.2, 0.006: 15.32 %"),
    ("fast", 400_000, 1, "cuda"): Plan("98 x 98", "4082 x 4082", 4, "all"),
    ("default", 8_192, 1, "cpu"): Plan("32 x 32", "256 x 256", 9, "0.03, 0.2, 0.004: 12.18 %"),
    ("default", 8_192, 1, "cuda"): Plan("16 x 16", "512 x 512", 18, "all"),
    ("default", 32_768, 1, "cpu"): Plan("64 x 64", "512 x 512", 4, "0.03, 0.2, 0.004: 12.07 %"),
    ("default", 32_768, 1, "cuda"): Plan("16 x 16", "2048 x 2048", 18, "all"),
    ("default", 98_304, 1, "cpu"): Plan("96 x 96", "1024 x 1024", 4, "0.03, 0.2, 0.004: 12.19 %"),
    ("default", 98_304, 1, "cuda"): Plan("24 x 24", "4096 x 4096", 12, "all"),
    ("default", 400_000, 1, "cpu"): Plan("391 x 391", "1024 x 1024", 4, "0.03, 0.2, 0.004: 12.19 %"),
    ("default", 400_000, 1, "cuda"): Plan("98 x 98", "4082 x 4082", 4, "all"),
    ("graph", 8_192, 1, "cpu"): Plan("32 x 32", "256 x 256", 9, "0.03, 0.2, 0.006: 15.01 %"),
    ("graph", 8_192, 1, "cuda"): Plan("16 x 16", "512 x 512", 18, "all"),
    ("graph", 98_304, 1, "cpu"): Plan("96 x 96", "1024 x 1024", 4, "0.03, 0.2, 0.006: 15.32 %"),
    ("paper", 8_192, 4, "cpu"): Plan("2 x 8", "4096 x 4096", 100, "all"),
    ("paper", 8_192, 4, "cuda"): Plan("2 x 8", "4096 x 4096", 100, "all"),
    ("paper", 32_768, 4, "cpu"): Plan("8 x 32", "4096 x 4096", 100, "all"),
    ("paper", 32_768, 4, "cuda"): Plan("8 x 32", "4096 x 4096", 100, "all"),
    ("paper", 98_304, 4, "cpu"): Plan("24 x 96", "4096 x 4096", 100, "all"),
    ("paper", 98_304, 4, "cuda"): Plan("24 x 96", "4096 x 4096", 100, "all"),
    ("paper", 400_000, 4, "cpu"): Plan("98 x 391", "4082 x 4093", 100, "all"),
    ("paper", 400_000, 4, "cuda"): Plan("98 x 391", "4082 x 4093", 100, "all"),
    ("fast", 8_192, 4, "cpu"): Plan("32 x 128", "256 x 256", 9, "0.03, 0.2, 0.006: 15.01 %"),
    ("fast", 8_192, 4, "cuda"): Plan("16 x 64", "512 x 512", 18, "all"),
    ("fast", 32_768, 4, "cpu"): Plan("64 x 256", "512 x 512", 4, "0.03, 0.2, 0.006: 15.24 %"),
    ("fast", 32_768, 4, "cuda"): Plan("16 x 64", "2048 x 2048", 18, "all"),
    ("fast", 98_304, 4, "cpu"): Plan("96 x 384", "1024 x 1024", 4, "0.03, 0.2, 0.006: 15.32 %"),
    ("fast", 98_304, 4, "cuda"): Plan("24 x 96", "4096 x 4096", 12, "all"),
    ("fast", 400_000, 4, "cpu"): Plan("391 x 1564", "1024 x 1024", 4, "0.03, 0.2, 0.006: 15.32 %"),
    ("fast", 400_000, 4, "cuda"): Plan("98 x 391", "4082 x 4093", 4, "all"),
    ("default", 8_192, 4, "cpu"): Plan("32 x 128", "256 x 256", 9, "0.03, 0.2, 0.004: 12.18 %"),
    ("default", 8_192, 4, "cuda"): Plan("16 x 64", "512 x 512", 18, "all"),
    ("default", 32_768, 4, "cpu"): Plan("64 x 256", "512 x 512", 4, "0.03, 0.2, 0.004: 12.07 %"),
    ("default", 32_768, 4, "cuda"): Plan("16 x 64", "2048 x 2048", 18, "all"),
    ("default", 98_304, 4, "cpu"): Plan("96 x 384", "1024 x 1024", 4, "0.03, 0.2, 0.004: 12.19 %"),
    ("default", 98_304, 4, "cuda"): Plan("24 x 96", "4096 x 4096", 12, "all"),
    ("default", 400_000, 4, "cpu"): Plan("391 x 1564", "1024 x 1024", 4, "0.03, 0.2, 0.004: 12.19 %"),
    ("default", 400_000, 4, "cuda"): Plan("98 x 391", "4082 x 4093", 4, "all"),
}

# Tables made by `make_table`: rows, columns and draws of a cell.
TABLES = {
    "small and dense": (400, 250, 30_000),
    "medium": (4_000, 3_000, 140_000),
    "large and sparse": (70_000, 20_000, 80_000),
}
# What the recipe `table` resolves for them, beside the settings that it has for all tables.
TABLE_SETTINGS: dict[str, dict[str, Any]] = {
    "small and dense": {
        "unseen": 0.00300412307,
        "learning_rate": 0.25,
        "block_size": 512,
        "epochs": 24,
        "zeros": "all",
        "weight_decay": 0.0184077,
    },
    "medium": {
        "unseen": 0.00301125088,
        "learning_rate": 0.25,
        "block_size": 1355,
        "epochs": 24,
        "zeros": "auto",
        "zeros_common": 0.2,
        "zeros_middle": 0.4,
        "zeros_share": 0.04,
        "weight_decay": 0.0030298,
    },
    "large and sparse": {
        "unseen": 0.00301301603,
        "learning_rate": 0.25,
        "zeros": "auto",
        "zeros_common": 0.00284689,
        "zeros_middle": 0.0477233,
        "zeros_share": 0.000569379,
        "weight_decay": 0.000648208,
    },
}
# Factor of the log sum of a column in rankings.
TABLE_POPULARITY = {"small and dense": 0.79, "medium": 0.58, "large and sparse": 0.27}
TABLE_PLANS = {
    ("small and dense", "cpu"): Plan("1 x 1", "400 x 250", 24, "all"),
    ("small and dense", "cuda"): Plan("1 x 1", "400 x 250", 24, "all"),
    ("medium", "cpu"): Plan("3 x 3", "1334 x 1000", 24, "0.2, 0.4, 0.04 per 512 rows: 46.99 %"),
    ("medium", "cuda"): Plan("3 x 3", "1334 x 1000", 24, "all"),
    ("large and sparse", "cpu"): Plan(
        "224 x 64", "313 x 313", 8, "0.00284689, 0.0477233, 0.000569379 per 512 rows: 3.09 %"
    ),
    ("large and sparse", "cuda"): Plan("69 x 20", "1015 x 1000", 24, "all"),
}

# Numbers that vectors, counts or reported results depend on, by module. Sizes of buffers and batches, which change no
# result, are left out.
CONSTANTS: dict[str, dict[str, Any]] = {
    "swivel.config": {"WARM_START": {"learning_rate": 0.1, "accumulator_decay": 1.0, "updates_per_vector": 480}},
    # Counts.
    "swivel.corpus.character_classes": {"MAX_TOKEN_BYTES": 65_536},
    "swivel.corpus.joined_corpus": {"THRESHOLDS": {"word2vec": 10.0, "npmi": 0.5}},
    "swivel.counts.cooccurrence.corpus_count": {"_MAX_UNIT": 16_777_216, "_BINARY_UNIT": 1_048_576},
    "swivel.counts.importers.context": {
        "_CANDIDATES": (1, 4, 10, 100, 1_000, 2_520, 10_000, 720_720, 1_000_000),
        "_TOLERANCE": 1e-9,
        "_GOOD_BITS": 24,
        "_FAIR_BITS": 10,
        "_STORED_BITS": 31,
        "MAX_TOTAL_BITS": 61,
        "_MAX_BITS": 60,
    },
    "swivel.counts.importers.walks": {
        "WINDOW": 10,
        "HUB_SHARE": 0.5,
        "MIN_HUB_NODES": 1_000,
        "MAX_OPERATIONS": 2e12,
        "MAX_CELLS": 134_217_728,
        "SAMPLED_NODES": 256,
        "MAX_RANGE": 134_217_728.0,
        "WALK_LENGTH": 40,
        "MAX_WALKS_PER_NODE": 80,
        "MAX_PAIRS": 1_073_741_824,
    },
    "swivel.counts.block_layout": {"BLOCK_SIZE": 1_024, "MAX_SHARDS": 1_048_576},  # Training keeps stored blocks.
    # Training.
    "swivel.training.schedule": {
        "MIN_BLOCK_SIZE": 256,
        "MAX_BLOCK_SIZE_ON_CPU": 1_024,
        "MAX_BLOCK_SIZE_ON_GPU": 4_096,
        "MIN_EPOCHS": 4,
    },
    "swivel.training.training_plan": {
        "WARM_SPEEDUP": 3,
        "MAX_EPOCHS": 100,
        "SAMPLED_COST": 1.9,
        "MIN_MEASURED_CELLS": 3e9,
        "USUAL_DIM": 300,
    },
    "swivel.training.loop": {"ORDER": 3, "MAX_GROWTH": 100},
    "swivel.training.zero_sampling": {"GOLDEN_RATIO": 0.6180339887498949},
    "swivel.training.objective": {"NEVER": 1e30, "MIN_ACCUMULATOR": 1e-37},
    "swivel.training.objective_numba": {"LOWEST": -86.0, "HIGHEST": 30.0},
    "swivel.training.distributed.async_executor": {"AsyncExecutor.min_block_size": 1_024},
    "swivel.training.initialization": {"ROWS_PER_DRAW": 4_096, "WARM_ACCUMULATOR": 1e-4, "UNSEEN_WEIGHT": 0.02},
    "swivel.training.fold_in": {
        "MIN_WEIGHT_DECAY": 5e-5,
        "MAX_NEWTON_STEPS": 50,
        "MAX_CG_STEPS": 500,
        "MAX_HALVINGS": 40,
        "SUFFICIENT_DECREASE": 1e-4,
        "SAMPLE_COLUMNS": 8_192,
        "TOLERANCE": {torch.float64: 1e-9, torch.float32: 1e-5},
        "SAMPLE_TOLERANCE": 3e-3,
        "SAMPLE_STEPS": ((3, 3), (1, 5)),
    },
    # Tables.
    "swivel.training.table_settings": {
        "UNSEEN_GAP": 6.0,
        "STRENGTH": 0.77,
        "RATE_DIMS": 64,
        "SPECTRUM_DIMS": 128,
        "STRUCTURE_POWER": 0.65,
        "LEADING_DIMS": 8,
        "MIN_FACTOR": 0.68,
        "ITERATIONS": 2,
        "SPARE_DIMS": 16,
        "MAX_SPECTRUM_CELLS": 10_000_000,
        "MAX_SPECTRUM_ROWS": 50_000,
        "MIN_NOISE": 1e-9,
        "MIN_UNOBSERVED": 0.01,
        "MIN_TABLE_BLOCK": 512,
        "MAX_TABLE_BLOCK": 8_192,
        "CELLS_PER_VECTOR": 12,
        "MAX_SIZE": 65_536,
        "EPOCHS": 24,
        "FEW_CELLS": 2_000_000,
        "USUAL_DENSITY": 0.001,
        "MAX_DENSITY_RATIO": 4.0,
        "POPULAR_COLUMNS": 20,
    },
    "swivel.evaluation.labels": {"SPLITS": 5, "PENALTIES": (1.0, 10.0, 100.0), "CHECKED": 0.2},
    "swivel.pipeline.train": {"LITTLE_TEXT": 5e6, "MAX_TEXT_DECAY": 1e-3},
    "swivel.pipeline.tune": {
        "HELD_OUT": 0.1,
        "MAX_ROWS": 50_000,
        "MAX_RANKED_ROWS": 5_000,
        "MAX_EXPONENT": 6,
        "POPULARITIES": (0.0, 0.25, 0.5, 0.75, 1.0),
    },
    # Vectors.
    "swivel.vectors.combine": {
        "SVD_ROWS": 30_000,
        "_MIN_SINGULAR_RATIO": 1e-6,
        "_MIN_EIGENVALUE_RATIO": 1e-10,
    },
    "swivel.vectors.subwords": {
        "_NEIGHBORS": 4,
        "_POWER": 3,
        "_DOUBT": 0.1,
        "_MAX_WORDS": 200,
        "MIN_WORDS": 1_000,
        "MIN_N": 3,
        "MAX_N": 6,
        "MAX_NGRAMS": 131_072,
        "_MIN_NGRAM_WORDS": 2,
        "_PENALTY": 0.3,
        "_HALF_COUNT": 50,
        "_SLOPE": 1.12,
        "_OFFSET": -0.155,
        "_STEPS": 12,
    },
    "swivel.vectors.text_encoder": {"SMOOTHING": 1e-3, "_TEXT_WORDS": 10},
    "swivel.vectors.search": {"EPSILON": np.float32(0.001)},
    "swivel.vectors.comparison": {
        "MAD_TO_STD": 1.4826,
        "MIN_SPREAD": 0.01,
        "MAX_COSINE": 0.999999,
        "WINDOW_WORDS": 400,
    },
    "swivel.vectors.formats.fasttext_binary": {"BUCKETS": 2_000_000},
    # Evaluation, and the methods that results are compared with.
    "swivel.evaluation.bootstrap": {"DRAWS": 10_000, "SEED": 1, "LEVEL": 0.95},
    "swivel.evaluation.text_sets": {"FOLDS": 5, "_INVERSE_PENALTY": 0.01, "_USUAL_TEXTS": 3_000, "_MAX_STEPS": 100},
    "experiments.word2vec": {
        "RATES": {"sgns": 0.025, "cbow": 0.05, "fasttext": 0.05},
        "MAX_SENTENCE_TOKENS": 10_000,
    },
    "experiments.table_methods": {
        "TRIALS": 25,
        "MAX_VALIDATION_ROWS": 10_000,
        "ALS_ITERATIONS": 15,
        "IALS_EPOCHS": 16,
        "IALS_STEPS": 3,
        "ITEM_WINDOW": 20,
        "ITEM_EPOCHS": 10,
    },
}

# Values of functions that contain numbers without a name: module, function, arguments, value.
VALUES: list[tuple[str, str, tuple[Any, ...], Any]] = [
    # A stored number of blocks is kept from .75 to 1.34 times the wanted one.
    ("swivel.training.schedule", "choose_block_count", (100_000, 1_000, 74), 100),
    ("swivel.training.schedule", "choose_block_count", (100_000, 1_000, 75), 75),
    ("swivel.training.schedule", "choose_block_count", (100_000, 1_000, 134), 134),
    ("swivel.training.schedule", "choose_block_count", (100_000, 1_000, 135), 100),
    # The first tenth of the features has 4, then 5, counts; the most frequent one 10.
    ("swivel.training.schedule", "is_sorted_enough", (np.array([4, *[1] * 8, 10]), 0.1), False),
    ("swivel.training.schedule", "is_sorted_enough", (np.array([5, *[1] * 8, 10]), 0.1), True),
    # .5 + .2 log 2
    ("swivel.recommender", "default_popularity", (2_000, 1_000), 0.638629436),
    # .25 + .09 log 2, and the share .2 of the 20 most frequent of 100 equal columns
    ("swivel.training.table_settings", "choose_popularity", (1_000, 2_000, np.ones(100)), 0.51),
]


def describe_difference(recipe: str, setting: str, expected: object, found: object) -> str:
    return (
        f"recipe {recipe}, setting {setting}: expected {expected!r}, got {found!r}; "
        "if that is deliberate, edit this table"
    )


def compare_settings(
    recipe: str, stage: str, expected: Mapping[str, Any], found: Mapping[str, Any], *, rounding: float = 0.0
) -> list[str]:
    """Return one line per setting that differs, is missing or is not in the table."""
    lines = []
    for setting in sorted({*expected, *found}):
        want, have = expected.get(setting, "no such setting"), found.get(setting, "no such setting")
        is_close = isinstance(want, float) and isinstance(have, float) and math.isclose(want, have, rel_tol=rounding)
        if want != have and not is_close:
            lines.append(describe_difference(recipe, f"{stage}.{setting}", want, have))
    return lines


def assert_no_differences(lines: list[str]) -> None:
    assert not lines, "\n" + "\n".join(lines)


def expected_settings(recipe: str, stage: str) -> dict[str, Any]:
    number = NAMES.index(recipe)
    return {setting: values[number] for setting, values in SETTINGS[stage].items()}


def test_every_recipe_has_a_column_in_the_table_of_settings() -> None:
    recipes = set(RECIPES) - WITHOUT_ENTRY
    assert recipes == set(NAMES), "a recipe was added or removed: edit NAMES, SETTINGS and PLANS"
    assert set(STAGES) == set(SETTINGS), "a stage was added or removed: edit SETTINGS"
    assert {recipe for recipe, *_ in PLANS} | {"table"} == recipes, "a recipe has no plans: edit PLANS"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("recipe", NAMES)
def test_settings_of_a_recipe_are_those_of_the_table(recipe: str, stage: str) -> None:
    found = asdict(stage_config(STAGES[stage], recipe))
    assert_no_differences(compare_settings(recipe, stage, expected_settings(recipe, stage), found))


def test_settings_that_no_recipe_has_are_those_of_the_table() -> None:
    lines = []
    for module, classes in OTHER_SETTINGS.items():
        for name, expected in classes.items():
            found = asdict(getattr(importlib.import_module(module), name)())
            lines += compare_settings("(none)", f"{module}.{name}", expected, found)
    assert_no_differences(lines)


def make_plan(matrix: Any, config: TrainConfig, device: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan for a device, which this machine need not have."""
    backend = "cpu" if device == "cpu" else "torch"
    monkeypatch.setattr(planning, "choose_backend", lambda config: (backend, device))
    # The choice of the dtype measures this machine.
    plan = planning.make_plan(matrix, replace(config, dtype="float32"))

    blocks = plan.row_blocks, plan.column_blocks
    rows, columns = (math.ceil(size / count) for size, count in zip(matrix.shape, blocks, strict=True))
    zeros = planning.choose_zeros(matrix, config, device, blocks)
    described = "all"
    if zeros.common < 1:
        panel = "" if zeros.rows is None else f" per {zeros.rows} rows"
        percent = 100 * zeros.computed_share(rows, columns)
        described = f"{zeros.common:g}, {zeros.middle:g}, {zeros.share:g}{panel}: {percent:.2f} %"
    return Plan(f"{blocks[0]} x {blocks[1]}", f"{rows} x {columns}", plan.epochs, described)


def make_word_matrix(rows: int, columns_per_row: int) -> Any:
    """Return the sizes that a plan depends on, with the blocks in which such a matrix of words is stored."""
    columns = rows * columns_per_row
    layout = choose_layout(rows, columns, parts=columns_per_row, symmetric=columns_per_row == 1)
    return SimpleNamespace(
        shape=(rows, columns),
        row_blocks=layout.row_blocks,
        column_blocks=layout.column_blocks,
        row_sums=np.ones(rows),
        column_sums=np.ones(columns),
        cell_count=1_000,
        total=1e6,
        is_symmetric=layout.symmetric,
        stored_cell_count=1_000,
    )


@pytest.mark.parametrize(("rows", "columns_per_row"), sorted({case[1:3] for case in PLANS}))
def test_plans_are_those_of_the_table(rows: int, columns_per_row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make_word_matrix(rows, columns_per_row)
    lines = []
    for case, expected in PLANS.items():
        if case[1:3] == (rows, columns_per_row):
            recipe, device = case[0], case[3]
            found = make_plan(matrix, stage_config(TrainConfig, recipe), device, monkeypatch)
            where = f"plan of {rows} rows, {columns_per_row} columns per row, {device}"
            lines += compare_settings(recipe, where, expected._asdict(), found._asdict())
    assert_no_differences(lines)


def make_table(rows: int, columns: int, draws: int) -> scipy.sparse.coo_array:
    """Return a table of amounts from 1 to 9; the first rows and columns have most of them, and 200 groups have more."""
    rng = random.Random(1)  # `random` gives the same numbers with every version of Python.

    def draw(size: int) -> int:
        return int(size * rng.random() * rng.random())

    cells = {}
    for _ in range(draws):
        row, column = draw(rows), draw(columns)
        if rng.random() < 0.4:
            column = min(column // 200 * 200 + row % 200, columns - 1)
        cells[row, column] = 1 + draw(9)

    amounts = np.array([*cells.values()], np.float64)
    return scipy.sparse.coo_array((amounts, tuple(np.array([*cells]).T)), shape=(rows, columns))


def test_little_text_has_more_weight_decay() -> None:
    words = [f"word{number}" for number in range(1_000)]
    text = [words[n:] + words[:n] for n in range(0, 1_000, 100)] * 100  # 1 M tokens
    matrix = swivel.count(text, window=2)

    def decay(matrix: Any = matrix, recipe: str = "default", **settings: Any) -> float:
        return resolve_configs(matrix, recipe, settings)[0].weight_decay

    assert decay() == 2.5e-4  # 5 times that of 5 M tokens
    assert decay(weight_decay=1e-5) == 1e-5
    assert decay(recipe="fast") == 1e-4
    assert decay(swivel.count([each[:-1] for each in text], window=2, max_size=999)) == 5e-5  # too few words
    assert decay(swivel.import_counts(np.ones((1_000, 1_000)))) == 5e-5
    trained = swivel.train(matrix, dim=4, epochs=1)
    assert resolve_configs(matrix, "default", {}, trained)[0].weight_decay == 5e-5
    for vectors in (trained, swivel.run(text, window=2, dim=4, epochs=1)):
        assert vectors.settings["train"]["weight_decay"] == 2.5e-4


@pytest.mark.parametrize("name", TABLES)
def test_settings_that_follow_from_a_table_are_the_expected_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = swivel.import_counts(make_table(*TABLES[name]))
    matrix = counted.transformed("log")
    train_config, vectors_config = resolve_configs(matrix, "table", {})
    popularity = choose_popularity(matrix.shape[0], matrix.cell_count, matrix.column_sums)

    # The last digits of sums of logarithms and of singular values depend on the CPU.
    expected = expected_settings("table", "train") | TABLE_SETTINGS[name]
    lines = compare_settings("table", f"{name}: train", expected, asdict(train_config), rounding=2e-5)
    lines += compare_settings(
        "table", f"{name}: vectors", expected_settings("table", "vectors"), asdict(vectors_config)
    )
    if popularity != TABLE_POPULARITY[name]:
        lines.append(describe_difference("table", f"{name}: popularity", TABLE_POPULARITY[name], popularity))
    for device in ("cpu", "cuda"):
        plan = make_plan(matrix, train_config, device, monkeypatch)
        lines += compare_settings(
            "table", f"{name}: plan, {device}", TABLE_PLANS[name, device]._asdict(), plan._asdict()
        )
    assert_no_differences(lines)


@pytest.mark.parametrize("module", CONSTANTS)
def test_tuned_constants_are_those_of_the_table(module: str) -> None:
    expected = CONSTANTS[module]
    home = importlib.import_module(module)
    found = {}
    for name in expected:
        try:
            found[name] = operator.attrgetter(name)(home)
        except AttributeError:
            found[name] = f"no such name in {module}"
    assert_no_differences(compare_settings("(all)", module, expected, found))


@pytest.mark.parametrize(("module", "function", "arguments", "expected"), VALUES)
def test_values_of_functions_with_tuned_numbers_are_those_of_the_table(
    module: str, function: str, arguments: tuple[Any, ...], expected: object
) -> None:
    found = getattr(importlib.import_module(module), function)(*arguments)
    assert_no_differences(compare_settings("(all)", module, {function: expected}, {function: found}, rounding=1e-8))
