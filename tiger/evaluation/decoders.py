"""The decoders of a benchmark on one evaluation set: built when needed, answers and times kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from data_modules.evaluation import TaskSet
from tiger.backbones.base import Backbone, Prompt, PromptTooLong
from tiger.backbones.folders import resolve
from tiger.backbones.loading import Quantization, load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import AutoregressiveDecoder
from tiger.decoding.pruners import build_pruner, decoder_options, is_pruner
from tiger.decoding.records import Generation
from tiger.decoding.speculative import SpeculativeDecoder
from tiger.drafting.base import Drafter
from tiger.drafting.chain import end_early
from tiger.drafting.heads.saving import SETTINGS_FILE as HEAD_FILE
from tiger.drafting.heads.saving import is_head, load_head
from tiger.drafting.methods import build_method
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import SETTINGS_FILE as DRAFTER_FILE
from tiger.drafting.saving import load_drafter
from tiger.evaluation.samples import Journal, fingerprint, from_record, settings_key, to_record
from tiger.evaluation.timing import Timing, measure

BASELINE = "autoregressive"
TOO_LONG = "prompt_too_long"


@dataclass
class Decoders:
    """Decoders by name, over one verifier and one evaluation set.

    Attributes:
        verifier: Folder, hub id or shipped name.
        drafters: Drafter of each decoder: a model or a draft head, or a training-free method or a pruner of
            the verifier by name or YAML file; None for the autoregressive one.
        tasks: What is decoded for acceptance and scores.
        timed: What is decoded for speed.
        num_timed: So many of its first prompts are.
        samples: Journal of answers.
        times: Journal of timings.
        block_size: Tokens drafted in one round.
        block_sizes: Other block sizes, by `name` or `name@temperature`.
        max_new_tokens: Longest answer, tokens; None for the set's own.
        seed: Seed of sampling.
        dtype: Name of a torch dtype.
        verifier_quantization: Bits of the verifier's weights, see `load_backbone`.
        device: Where to compute.
        compile_drafter: Whether the drafters' steps are compiled.
        confidence_threshold: Where routed drafters and heads end a block early, see `Chain`.
        loaded: Models by name, which the decoders of several sets share.
    """

    verifier: str
    drafters: Mapping[str, str | None]
    tasks: TaskSet
    timed: TaskSet
    num_timed: int
    samples: Journal
    times: Journal
    block_size: int = 8
    block_sizes: Mapping[str, int] = field(default_factory=dict)
    max_new_tokens: int | None = None
    seed: int = 0
    dtype: str = "float32"
    verifier_quantization: Quantization | None = None
    device: str = "cpu"
    compile_drafter: bool = False
    confidence_threshold: float = 0.0
    loaded: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = self.tasks.prompt_ids  # of all prompts, also those that turn out to be too long

    @property
    def backbone(self) -> Backbone:
        """The verifier's backbone, loaded once."""
        if "verifier" not in self.loaded:
            self.loaded["verifier"] = load_backbone(
                self.verifier, self.dtype, quantization=self.verifier_quantization, device=self.device
            )
        backbone: Backbone = self.loaded["verifier"]
        return backbone

    def drafter(self, path: str) -> Drafter:
        """A drafter: a model is loaded once, a method is made anew, as it may remember what it has read."""
        if (options := decoder_options(path)) is not None:
            return build_method(options)
        key = f"drafter {path}"
        if key not in self.loaded:
            self.loaded[key] = self._load(path)
            end_early(self.loaded[key], self.confidence_threshold)
        drafter: Drafter = self.loaded[key]
        return drafter

    def _load(self, path: str) -> Drafter:
        if is_head(folder := resolve(path)):
            return load_head(folder, self.backbone)
        drafter = load_drafter(path, self.dtype).to(self.backbone.device)
        if self.compile_drafter:
            drafter.compile_steps()
        return drafter

    def limit(self, tasks: TaskSet) -> int:
        """Longest answer in a set, tokens."""
        return tasks.answer_limit if self.max_new_tokens is None else self.max_new_tokens

    def cost(self, name: str) -> dict[str, float | None]:
        """What a drafter takes besides the verifier: its weights, and the time of its last training.

        The time is None where nothing was trained, or the drafter's notes do not say.
        """
        path = self.drafters[name]
        if path is None or decoder_options(path) is not None:
            return {"parameters": 0, "training_seconds": None}
        drafter: Any = self.drafter(path)
        files = [resolve(path) / file for file in (HEAD_FILE, DRAFTER_FILE)]
        notes = [json.loads(file.read_text()) for file in files if file.is_file()]
        size = sum(parameter.numel() for parameter in drafter.parameters())
        return {"parameters": size, "training_seconds": notes[0].get("training_seconds") if notes else None}

    def is_lossy(self, name: str) -> bool:
        """Whether a decoder's text is not meant to be the verifier's: it prunes what the verifier reads."""
        return is_pruner(self.drafters[name])

    def block_size_of(self, name: str, temperature: float) -> int | None:
        """Tokens that a decoder drafts in one round; None for one that drafts nothing."""
        if self.drafters[name] is None or self.is_lossy(name):
            return None
        return self.block_sizes.get(f"{name}@{temperature:g}", self.block_sizes.get(name, self.block_size))

    def build(
        self, name: str, temperature: float, tasks: TaskSet | None = None
    ) -> AutoregressiveDecoder | SpeculativeDecoder:
        """A ready decoder for the given set, by default `tasks`.

        Raises:
            ValueError: If drafter and verifier have different tokenizers.
        """
        limit, sampling = self.limit(tasks or self.tasks), Sampling(temperature)
        path, block_size = self.drafters[name], self.block_size_of(name, temperature)
        if path is not None and self.is_lossy(name):
            pruned = build_pruner(decoder_options(path) or {}, self.backbone)
            return AutoregressiveDecoder(pruned, limit, sampling, self.seed)
        if path is None or block_size is None:
            return AutoregressiveDecoder(self.backbone, limit, sampling, self.seed)
        return SpeculativeDecoder(self.backbone, self.drafter(path), block_size, limit, sampling, self.seed)

    def settings(self, name: str, temperature: float) -> dict[str, Any]:
        """Everything that a decoder's answers depend on."""
        models = [path for path in (self.verifier, self.drafters[name]) if path is not None]
        return {
            "models": [[path, decoder_options(path) or fingerprint(resolve(path))] for path in models],
            "temperature": temperature,
            "block_size": self.block_size_of(name, temperature),
            "max_new_tokens": self.limit(self.tasks),
            "seed": self.seed,
            "dtype": self.dtype,
            **({"quantization": self.verifier_quantization} if self.verifier_quantization else {}),
            **({"device": self.device} if self.device != "cpu" else {}),
            **({"compiled": True} if self.compile_drafter else {}),
            **({"confidence": self.confidence_threshold} if self.confidence_threshold else {}),
            "prompts": self.ids,
            "set": self.tasks.settings(),
        }

    def decode(
        self,
        name: str,
        temperature: float,
        batch_size: int,
        shard: tuple[int, int] = (0, 1),
        advance: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Decodes the prompts that have no answer yet.

        Args:
            name: Name of a decoder.
            temperature: Sampling temperature.
            batch_size: Prompts at once.
            shard: Number of this process and of all processes; each takes every n-th missing prompt.
            advance: Called with the number of prompts that are done.
        """
        key = self._key(name, temperature, batch_size)
        found = self.samples.found(key)
        missing = [index for index, prompt_id in enumerate(self.ids) if prompt_id not in found]
        advance(len(self.ids) - len(missing))
        mine = missing[shard[0] :: shard[1]]
        decoder = self.build(name, temperature) if mine else None
        where = {"decoder": name, "temperature": temperature, "batch_size": batch_size}
        for start in range(0, len(mine), batch_size):
            indices = mine[start : start + batch_size]
            assert decoder is not None
            records = _records(decoder, [self.tasks.prompt(index) for index in indices])
            self.samples.add(key, records, len(self.ids), dataset=self.tasks.label, **where)
            advance(len(indices))

    def drop_too_long(self, temperatures: Sequence[float], batch_size: int) -> None:
        """Leaves out of the set what a model could not read, after `decode`.

        Raises:
            ValueError: If nothing is left.
        """
        records = (self._records_of(name, t, batch_size) for t in temperatures for name in self.drafters)
        names = {record["id"] for cell in records for record in cell if record.get("skipped")}
        if len(names) == len(self.ids):
            raise _none_fits(self.tasks)
        if names:
            self.tasks.drop(names, TOO_LONG)

    def answers(self, name: str, temperature: float, batch_size: int) -> list[Generation]:
        """Answers to all prompts, in order, after `drop_too_long`."""
        by_id = {record["id"]: record for record in self._records_of(name, temperature, batch_size)}
        return [from_record(by_id[prompt_id]) for prompt_id in self.tasks.prompt_ids]

    def _records_of(self, name: str, temperature: float, batch_size: int) -> list[dict[str, Any]]:
        records = self.samples.get(self._key(name, temperature, batch_size))
        assert records is not None, "decode first"
        return records

    def note_scores(
        self, name: str, temperature: float, batch_size: int, points: Sequence[float | None]
    ) -> None:
        """Puts the score of each answer into its record."""
        scores = dict(zip(self.tasks.prompt_ids, points, strict=True))
        self.samples.note(self._key(name, temperature, batch_size), "score", scores)

    def timings(self, temperature: float, batch_size: int, repeats: int) -> dict[str, Timing]:
        """Times of all decoders on the timed prompts, measured or read back; empty for no prompts.

        Raises:
            ValueError: If all timed prompts are too long for a model.
        """
        if not self.num_timed:
            return {}
        settings = {name: self.settings(name, temperature) for name in self.drafters}
        timed = self.timed.prompt_ids[: self.num_timed]
        settings |= {"batch_size": {"size": batch_size, "timed": timed, "repeats": repeats}}
        settings["threads"] = {"number": torch.get_num_threads(), "limit": self.limit(self.timed)}
        settings["timed set"] = self.timed.settings()
        key = settings_key(settings)
        records = self.times.get(key)
        if records is None:
            decoders = {name: self.build(name, temperature, self.timed) for name in self.drafters}
            prompts = [self.timed.prompt(index) for index in range(len(timed))]
            too_long = _too_long(prompts, list(decoders.values()))
            if len(too_long) == len(prompts):
                raise _none_fits(self.timed)
            runs = {name: decoder.generate for name, decoder in decoders.items()}
            fitting = [prompt for prompt in prompts if prompt.id not in too_long]
            timings = measure(runs, fitting, batch_size, repeats)
            rows = [
                {"decoder": name, "timing": asdict(timing) | {"too_long": too_long}}
                for name, timing in timings.items()
            ]
            self.times.add(key, rows, len(timings), temperature=temperature, batch_size=batch_size)
            records = self.times.get(key) or []
        return {record["decoder"]: Timing(**record["timing"]) for record in records}

    def _key(self, name: str, temperature: float, batch_size: int) -> str:
        return settings_key(self.settings(name, temperature) | {"batch_size": batch_size})


def _none_fits(tasks: TaskSet) -> ValueError:
    return ValueError(
        f"No prompt of {tasks.label} fits into the context. Lower the processor's largest image size, take "
        "fewer frames of a video, or choose models with a longer context."
    )


def _too_long(
    prompts: Sequence[Prompt], decoders: Sequence[AutoregressiveDecoder | SpeculativeDecoder]
) -> list[str]:
    """Ids of the prompts that a model of the decoders cannot read."""
    drafters = [decoder.drafter for decoder in decoders if isinstance(decoder, SpeculativeDecoder)]
    readers = [decoder.verifier.backbone for decoder in decoders[:1]]
    readers += [drafter.backbone for drafter in drafters if isinstance(drafter, RoutedDrafter)]
    found = []
    for prompt in prompts:
        try:
            for reader in readers:
                reader.prepare(prompt)
        except PromptTooLong:
            found.append(prompt.id)
    return found


def _records(
    decoder: AutoregressiveDecoder | SpeculativeDecoder, prompts: Sequence[Prompt]
) -> list[dict[str, Any]]:
    """Answers as records; a prompt that is too long gets one that says so."""
    try:
        return [to_record(answer) for answer in decoder.generate(prompts)]
    except PromptTooLong:
        if len(prompts) == 1:
            return [{"id": prompts[0].id, "skipped": TOO_LONG}]
        return [record for prompt in prompts for record in _records(decoder, [prompt])]
