"""Small folders of results to report, written by hand."""

import json

from torch.utils.tensorboard import SummaryWriter

SHARES = {"vanilla": 0.72, "kd": 0.78, "tiger": 0.85}


def entry(name, temperature=0.0, dataset="synthetic", batch_size=1, rate=None, score=96.5):
    """An entry of a benchmark's metrics.json whose tokens are each accepted with the chance `rate`."""
    rate = SHARES.get(name, 0.8) if rate is None else rate
    plain = name == "autoregressive"
    shares = {} if plain else {str(n): rate**n for n in range(1, 9)}
    acclen = sum(shares.values())
    speedup = 1.0 if plain else 0.45 + acclen / 4 - temperature / 10
    return {
        "decoder": name,
        "dataset": dataset,
        "temperature": temperature,
        "batch_size": batch_size,
        "speed_dataset": f"{dataset}_long",
        "block_size": None if plain else 8,
        "is_lossy": False,
        "parameters": 0 if plain else 967553,
        "training_seconds": 840.0 if name == "tiger" else None,
        "num_prompts": 300,
        "acclen": acclen,
        "acclen_low": acclen - 0.08,
        "acclen_high": acclen + 0.08,
        "p_accept_ge": shares,
        "rounds": 0 if plain else 900,
        "rounds_per_token": 1.0 if plain else 1 / (acclen + 1),
        "exact": None if temperature else 1.0,
        "metric": "exact_match",
        "score": score,
        "score_low": score - 2,
        "score_high": score + 2,
        "tokens_per_second": 100 * speedup,
        "speedup": speedup,
        "speedup_low": speedup - 0.05,
        "speedup_high": speedup + 0.06,
        "latency_s": 0.25 / speedup,
        "first_token_s": 0.02,
        "phase_ms": {"route": 0.1, "draft": 8.0, "verify": 0.0 if plain else 12.0, "other": 0.3},
        "other_share": 0.015,
        "num_threads": 1,
        "device": "cpu",
    }


def write_benchmark(folder, names=("autoregressive", "vanilla", "kd", "tiger"), settings=True):
    """A benchmark's folder."""
    folder.mkdir(parents=True)
    cells = [entry(name, temperature) for temperature in (0.0, 1.0) for name in names]
    difference = {"left": "tiger", "right": "kd", "dataset": "synthetic", "temperature": 0.0}
    difference |= {"difference": 0.52, "low": 0.31, "high": 0.74}
    (folder / "metrics.json").write_text(json.dumps(cells))
    (folder / "differences.json").write_text(json.dumps([difference]))
    if settings:
        provenance = {
            "command": "python -m tiger benchmark --config a.yaml",
            "time": "2026-01-02T03:04:05+00:00",
        }
        provenance |= {"git": {"commit": "0123456789abcdef", "dirty": True}, "versions": {"tiger": "0.1.0"}}
        provenance |= {"hardware": {"platform": "Linux", "cpus": 2, "gpus": []}}
        record = {"arguments": {"verifier": "tiny/verifier"}, "provenance": provenance}
        (folder / "settings.json").write_text(json.dumps(record))
    return cells


def value(mean, spread=0.1):
    """A column's value over three seeds."""
    ends = {"low": mean - 2 * spread, "high": mean + 2 * spread, "interval": "seeds"}
    return {"mean": mean, "seeds": [mean - spread, mean, mean + spread]} | ends


def study(kind="bars", **changes):
    """The content of a study's metrics.json."""
    names = {"K = 4": (4, "kd"), "K = 8": (8, "tiger"), "K = 16": (16, "vanilla")}
    cells = [
        {"name": f"k{x}", "label": label, "group": None, "x": x, "status": "finished", "log": None}
        | {"values": {"acclen": value(4.0 + 0.1 * place), "speedup": value(1.8 + 0.05 * place, 0.02)}}
        | {"entries": [entry(like), entry(like, 1.0)]}
        for place, (label, (x, like)) in enumerate(names.items())
    ]
    cells.append({"name": "all", "label": "All tokens", "group": None, "x": None, "status": "failed"})
    cells[-1] |= {"log": "runs/ablation/sparsity/all.log", "values": {}, "entries": []}
    versions = {"tiger": "0.1.0", "torch": "2.9.0"}
    rows = [{"label": "K = 4", "values": {"AccLen": 3.12}}, {"label": "K = 8", "values": {"AccLen": 3.37}}]
    return {
        "study": "sparsity",
        "title": "Routing sparsity",
        "question": "How many visual tokens should the drafter see?",
        "notes": "",
        "command": "make ablation STUDY=sparsity",
        "pair": "tiny",
        "seeds": [0, 1, 2],
        "provenance": {"commit": "fedcba9876543210", "config_hash": "c0ffee", "versions": versions}
        | {"hardware": "two cores", "started": "2026-01-02T03:04:05", "finished": "2026-01-02T04:04:05"},
        "columns": [
            {"key": "acclen", "label": "AccLen", "digits": 2, "higher_is_better": True},
            {"key": "speedup", "label": "Spd.", "digits": 2, "higher_is_better": True},
        ],
        "plot": {"kind": kind, "x": "speedup" if kind == "scatter" else "x", "y": "acclen", "series": None},
        "cells": cells,
        "paper": {"source": "Table 4", "pair": "LLaVA-v1.6 7B, COCO Caption", "rows": rows},
        "contrasts": [
            {"left": "k16", "right": "k4", "label": "more tokens", "key": "acclen"}
            | {"mean": 0.2, "low": 0.1, "high": 0.3}
        ],
    } | changes


def write_study(folder, **changes):
    """A study's folder."""
    folder.mkdir(parents=True)
    content = study(**changes)
    (folder / "metrics.json").write_text(json.dumps(content))
    return content


def write_run(folder, reward=0.1):
    """A training run's folder."""
    writer = SummaryWriter(str(folder))
    for step in range(12):
        figures = {"reward/mean": 4 + reward * step, "reward/zero_spread": 0.6 - 0.01 * step}
        figures |= {"reward/kl": 0.01 * step, "loss/total": 1 / (1 + step), "accept/length": 5 + 0.02 * step}
        figures |= {"speed/tokens_per_second": 900 + 5 * step, "gradient/router": 0.3, "epoch": step // 4}
        for tag, number in figures.items():
            writer.add_scalar(tag, number, 10 * step)
    writer.close()
    record = {"command": "python -m tiger fit --config align.yaml", "versions": {"tiger": "0.1.0"}}
    (folder / "provenance.json").write_text(json.dumps(record))
