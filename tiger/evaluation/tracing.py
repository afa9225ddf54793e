"""Pages on which the rounds of several decoders can be looked at side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_modules.evaluation import SetOptions, load_set
from tiger.backbones.base import Backbone
from tiger.backbones.loading import choose_device
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.heads.routed_head import RoutedHead
from tiger.drafting.routed import RoutedDrafter
from tiger.evaluation.building import Decoder
from tiger.evaluation.decoders import Decoders
from tiger.evaluation.samples import Journal
from tiger.report.trace_page import Trace, grids_of, write_trace_page


def write_traces(
    benches: Sequence[Decoders], temperature: float, count: int, page: Path, **options: str
) -> None:
    """Writes a page with the rounds of the first answers of each set, all drafters side by side.

    Args:
        benches: Decoders on each set.
        temperature: Sampling temperature.
        count: Answers of each set.
        page: Target file.
        options: Of `write_trace_page`.

    Raises:
        ValueError: If no decoder drafts anything.
    """
    names = [name for name in benches[0].drafters if benches[0].block_size_of(name, temperature)]
    if not names:
        raise ValueError(
            "No decoder has a drafter whose rounds could be shown; list one or set num_traces 0."
        )
    traces = []
    for bench in benches:
        decoders = {name: bench.build(name, temperature) for name in names}
        for prompt in (bench.tasks.prompt(index) for index in range(min(count, len(bench.tasks)))):
            for name, decoder in decoders.items():
                answer = decoder.generate([prompt])[0]  # journals keep no router scores
                traces.append(Trace(prompt, answer, grids_of(_reader(decoder), prompt), None, name))
    write_trace_page(page, traces, benches[0].backbone.tokenizer, **options)


def _reader(decoder: Decoder) -> Backbone:
    """The backbone whose grids a decoder's routes refer to; the verifier's where nothing is routed."""
    drafter = decoder.drafter if isinstance(decoder, SpeculativeDecoder) else None
    return drafter.viewer if isinstance(drafter, RoutedDrafter | RoutedHead) else decoder.verifier.backbone


def retrace(arguments: Mapping[str, Any], count: int, page: Path, **options: str) -> None:
    """Decodes the first prompts of a benchmark's sets again and shows their rounds.

    Args:
        arguments: Arguments of `benchmark`, as its settings.json has them.
        count: Prompts of each set.
        page: Target file.
        options: Of `write_trace_page`.
    """
    names = arguments.get("dataset", "synthetic")
    names, seed = [names] if isinstance(names, str) else names, arguments.get("seed", 0)
    where = {name: SetOptions(**given) for name, given in (arguments.get("set_options") or {}).items()}
    sets = [load_set(name, count, seed, where.get(name, SetOptions())) for name in names]
    unused = Journal(page.with_suffix(".jsonl"))  # what is decoded here is not kept
    kept = ["block_size", "block_sizes", "max_new_tokens", "seed", "dtype", "verifier_quantization"]
    kept += ["confidence_threshold", "acceptances"]
    settings = {name: arguments[name] for name in kept if arguments.get(name) is not None}
    drafters, place = arguments["decoders"], str(choose_device(arguments.get("device")))
    first = Decoders(
        arguments["verifier"], drafters, sets[0], sets[0], 0, unused, unused, device=place, **settings
    )
    temperature = next(iter(arguments.get("temperatures") or [0.0]))
    benches = [first, *(replace(first, tasks=tasks) for tasks in sets[1:])]
    write_traces(benches, temperature, count, page, **options)
