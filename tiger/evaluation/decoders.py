"""The decoders of a benchmark: built when needed, their answers and times kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.folders import resolve
from tiger.backbones.loading import Quantization, load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.base import Drafter
from tiger.drafting.methods import build_method, method_options
from tiger.drafting.saving import load_drafter
from tiger.evaluation.samples import Journal, fingerprint, from_record, settings_key, to_record
from tiger.evaluation.timing import Timing, measure

BASELINE = "autoregressive"


@dataclass
class Decoders:
    """Decoders by name, over one verifier and one list of prompts.

    Attributes:
        verifier: Folder, hub id or shipped name.
        drafters: Drafter of each decoder: a model, or a training-free method by name or YAML file; None for
            the autoregressive one.
        prompts: What is decoded for acceptance.
        timed: What is decoded for speed.
        samples: Journal of answers.
        times: Journal of timings.
        block_size: Tokens drafted in one round.
        block_sizes: Other block sizes, by `name` or `name@temperature`.
        max_new_tokens: Longest answer, tokens.
        seed: Seed of sampling.
        dtype: Name of a torch dtype.
        verifier_quantization: Bits of the verifier's weights, see `load_backbone`.
    """

    verifier: str
    drafters: Mapping[str, str | None]
    prompts: Sequence[Prompt]
    timed: Sequence[Prompt]
    samples: Journal
    times: Journal
    block_size: int = 8
    block_sizes: Mapping[str, int] = field(default_factory=dict)
    max_new_tokens: int = 96
    seed: int = 0
    dtype: str = "float32"
    verifier_quantization: Quantization | None = None
    _backbone: Backbone | None = None
    _loaded: dict[str, Drafter] = field(default_factory=dict)

    def block_size_of(self, name: str, temperature: float) -> int | None:
        """Tokens that a decoder drafts in one round; None for the autoregressive one."""
        if self.drafters[name] is None:
            return None
        return self.block_sizes.get(f"{name}@{temperature:g}", self.block_sizes.get(name, self.block_size))

    def build(self, name: str, temperature: float) -> AutoregressiveDecoder | SpeculativeDecoder:
        """A ready decoder; models are loaded once.

        Raises:
            ValueError: If drafter and verifier have different tokenizers.
        """
        self._backbone = self._backbone or load_backbone(
            self.verifier, self.dtype, quantization=self.verifier_quantization
        )
        path, sampling = self.drafters[name], Sampling(temperature)
        block_size = self.block_size_of(name, temperature)
        if path is None or block_size is None:
            return AutoregressiveDecoder(self._backbone, self.max_new_tokens, sampling, self.seed)
        if path not in self._loaded:
            options = method_options(path)
            self._loaded[path] = (
                load_drafter(path, self.dtype).to(self._backbone.device)
                if options is None
                else build_method(options)
            )
        return SpeculativeDecoder(
            self._backbone, self._loaded[path], block_size, self.max_new_tokens, sampling, self.seed
        )

    def settings(self, name: str, temperature: float) -> dict[str, Any]:
        """Everything that a decoder's answers depend on."""
        models = [path for path in (self.verifier, self.drafters[name]) if path is not None]
        return {
            "models": [[path, method_options(path) or fingerprint(resolve(path))] for path in models],
            "temperature": temperature,
            "block_size": self.block_size_of(name, temperature),
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "dtype": self.dtype,
            **({"quantization": self.verifier_quantization} if self.verifier_quantization else {}),
            "prompts": [prompt.id for prompt in self.prompts],
        }

    def answers(self, name: str, temperature: float, batch_size: int) -> list[Generation]:
        """Answers to all prompts, decoded or read back."""
        key = settings_key(self.settings(name, temperature) | {"batch_size": batch_size})
        records = self.samples.get(key)
        if records is None:
            decoder, answers = self.build(name, temperature), []
            for start in range(0, len(self.prompts), batch_size):
                answers += decoder.generate(self.prompts[start : start + batch_size])
            where = {"decoder": name, "temperature": temperature, "batch_size": batch_size}
            records = self.samples.add(key, map(to_record, answers), **where)
        return list(map(from_record, records))

    def timings(self, temperature: float, batch_size: int, repeats: int) -> dict[str, Timing]:
        """Times of all decoders on the timed prompts, measured or read back; empty for no prompts."""
        if not self.timed:
            return {}
        settings = {name: self.settings(name, temperature) for name in self.drafters}
        timed = [prompt.id for prompt in self.timed]
        settings |= {"batch_size": {"size": batch_size, "timed": timed, "repeats": repeats}}
        settings["threads"] = {"number": torch.get_num_threads()}
        key = settings_key(settings)
        records = self.times.get(key)
        if records is None:
            runs = {name: self.build(name, temperature).generate for name in self.drafters}
            timings = measure(runs, self.timed, batch_size, repeats)
            rows = ({"decoder": name, "timing": asdict(timing)} for name, timing in timings.items())
            records = self.times.add(key, rows, temperature=temperature, batch_size=batch_size)
        return {record["decoder"]: Timing(**record["timing"]) for record in records}
