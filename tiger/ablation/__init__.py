"""Ablation studies: what a study is made of, how its jobs run, and how their results become tables."""
