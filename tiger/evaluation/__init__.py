"""Benchmark runner, cost model and memory accounting."""
