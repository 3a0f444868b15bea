"""Ratios against what a user would otherwise run; ``python -m benchmarks`` runs all."""
