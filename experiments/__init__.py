"""The paper's experiment, comparisons on tables, and baselines, which benchmarks use, too; no part of the package."""
