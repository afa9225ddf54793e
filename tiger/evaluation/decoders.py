"""The decoders of a benchmark on one evaluation set: built when needed, answers and times kept on disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from data_modules.evaluation import TaskSet
from data_modules.files import damaged
from tiger.backbones.base import Backbone, Prompt
from tiger.backbones.chat import UnusablePrompt
from tiger.backbones.folders import resolve
from tiger.backbones.loading import Quantization, check_model, load_backbone
from tiger.decoding.acceptance import Sampling
from tiger.decoding.autoregressive import Reads
from tiger.decoding.pruners import decoder_options, is_pruner
from tiger.decoding.records import Generation
from tiger.decoding.speculative import Acceptance, SpeculativeDecoder
from tiger.drafting.base import Drafter
from tiger.drafting.heads.saving import SETTINGS_FILE as HEAD_FILE
from tiger.drafting.heads.saving import check_head, is_head
from tiger.drafting.routed import RoutedDrafter
from tiger.drafting.saving import SETTINGS_FILE as DRAFTER_FILE
from tiger.drafting.saving import check_drafter
from tiger.evaluation.building import Decoder, build_decoder, load_method
from tiger.evaluation.samples import Journal, fingerprint, from_record, settings_key, to_record
from tiger.evaluation.timing import Timing, measure


def check_models(verifier: str, drafters: Mapping[str, str | None]) -> None:
    """Checks that all models are there before the first of them is loaded.

    Args:
        verifier: Folder, hub id or shipped name.
        drafters: As in `Decoders`.

    Raises:
        FileNotFoundError: If a folder, a file of it or a YAML file is missing.
        ValueError: If a model's family is not supported, or a YAML file names no known method.
    """
    check_model(verifier)
    for path in drafters.values():
        if path is None or decoder_options(path) is not None:
            continue
        if is_head(folder := resolve(path)):
            check_head(folder)
        else:
            check_drafter(path)


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
        acceptances: How drafts are accepted, by name, see `SpeculativeDecoder`; exactly by default.
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
    acceptances: Mapping[str, Acceptance] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = self.tasks.prompt_ids  # of all prompts, also those that turn out to be unusable

    @property
    def backbone(self) -> Backbone:
        """The verifier's backbone, loaded once."""
        if "verifier" not in self.loaded:
            self.loaded["verifier"] = load_backbone(
                self.verifier, self.dtype, quantization=self.verifier_quantization, device=self.device
            )
        backbone: Backbone = self.loaded["verifier"]
        return backbone

    def method(self, path: str) -> Drafter | Reads:
        """What drafts: a model is loaded once, a method is made anew, as it may remember what it has read."""
        if decoder_options(path) is not None:
            return load_method(path, self.backbone)
        key = f"drafter {path}"
        if key not in self.loaded:
            self.loaded[key] = load_method(
                path,
                self.backbone,
                self.dtype,
                compile_steps=self.compile_drafter,
                confidence_threshold=self.confidence_threshold,
            )
        drafter: Drafter = self.loaded[key]
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
        drafter: Any = self.method(path)
        files = [resolve(path) / file for file in (HEAD_FILE, DRAFTER_FILE)]
        notes = [json.loads(file.read_text()) for file in files if file.is_file()]
        size = sum(parameter.numel() for parameter in drafter.parameters())
        return {"parameters": size, "training_seconds": notes[0].get("training_seconds") if notes else None}

    def is_pruned(self, name: str) -> bool:
        """Whether a decoder drafts nothing, but prunes what the verifier reads."""
        return is_pruner(self.drafters[name])

    def is_lossy(self, name: str, temperature: float) -> bool:
        """Whether a decoder's text is not meant to be the verifier's: it prunes, or accepts too much."""
        return self.is_pruned(name) or self.acceptance_of(name, temperature) != "exact"

    def acceptance_of(self, name: str, temperature: float) -> Acceptance:
        """How a decoder accepts drafts; at temperature 0 every way is exact."""
        return self.acceptances.get(name, "exact") if temperature else "exact"

    def block_size_of(self, name: str, temperature: float) -> int | None:
        """Tokens that a decoder drafts in one round; None for one that drafts nothing."""
        if self.drafters[name] is None or self.is_pruned(name):
            return None
        return self.block_sizes.get(f"{name}@{temperature:g}", self.block_sizes.get(name, self.block_size))

    def build(self, name: str, temperature: float, tasks: TaskSet | None = None) -> Decoder:
        """A ready decoder for the given set, by default `tasks`.

        Raises:
            ValueError: If drafter and verifier have different tokenizers.
        """
        path = self.drafters[name]
        return build_decoder(
            self.backbone,
            None if path is None else self.method(path),
            self.block_size_of(name, temperature) or self.block_size,
            self.limit(tasks or self.tasks),
            Sampling(temperature),
            self.seed,
            self.acceptance_of(name, temperature),
        )

    def settings(self, name: str, temperature: float) -> dict[str, Any]:
        """Everything that a decoder's answers depend on."""
        acceptance = self.acceptance_of(name, temperature)
        models = [path for path in (self.verifier, self.drafters[name]) if path is not None]
        is_trained = len(models) > 1 and decoder_options(models[1]) is None
        drafting: dict[str, Any] = {"compiled": True} if self.compile_drafter else {}
        if self.confidence_threshold:
            drafting["confidence"] = self.confidence_threshold
        return {
            "models": [[path, decoder_options(path) or fingerprint(resolve(path))] for path in models],
            "temperature": temperature,
            "block_size": self.block_size_of(name, temperature),
            "max_new_tokens": self.limit(self.tasks),
            "seed": self.seed,
            "dtype": self.dtype,
            **({"quantization": self.verifier_quantization} if self.verifier_quantization else {}),
            **({"device": self.device} if self.device != "cpu" else {}),
            **(drafting if is_trained else {}),
            **({"acceptance": acceptance} if acceptance != "exact" else {}),
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

    def take(self, earlier: Journal, temperatures: Sequence[float], batch_size: int) -> int:
        """Takes over answers of an earlier benchmark that are as this one would decode them; counts them."""
        keys = [self._key(name, t, batch_size) for name in self.drafters for t in temperatures]
        return self.samples.take(keys, earlier)

    def drop_unusable(self, temperatures: Sequence[float], batch_size: int) -> None:
        """Leaves out of the set what a model could not read, after `decode`.

        Raises:
            ValueError: If nothing is left.
        """
        cells = (self._records_of(name, t, batch_size) for t in temperatures for name in self.drafters)
        reasons = {
            record["id"]: record["skipped"] for cell in cells for record in cell if "skipped" in record
        }
        if len(reasons) == len(self.ids):
            raise _none_left(self.tasks, reasons)
        for reason in sorted(set(reasons.values())):
            self.tasks.drop({name for name, own in reasons.items() if own == reason}, reason)

    def answers(self, name: str, temperature: float, batch_size: int) -> list[Generation]:
        """Answers to all prompts, in order, after `drop_unusable`.

        Raises:
            ValueError: If a record in the journal is damaged.
        """
        by_id = {record["id"]: record for record in self._records_of(name, temperature, batch_size)}
        return [self._answer(by_id[prompt_id]) for prompt_id in self.tasks.prompt_ids]

    def _answer(self, record: Mapping[str, Any]) -> Generation:
        try:
            return from_record(record)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            what = f"the answer {record['id']!r} of {record.get('decoder')!r} lacks something ({error!r})"
            raise damaged(self.samples.path, what, "Delete its line, and it is decoded again.") from error

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
            ValueError: If a model can read none of the timed prompts.
        """
        if not self.num_timed:
            return {}
        settings = {name: self.settings(name, temperature) for name in self.drafters}
        timed = self.timed.prompt_ids[: self.num_timed]
        settings |= {"batch_size": {"size": batch_size, "timed": timed, "repeats": repeats}}
        settings["threads"] = {"number": torch.get_num_threads(), "limit": self.limit(self.timed)}
        settings["timed_set"] = self.timed.settings()
        key = settings_key(settings)
        records = self.times.get(key)
        if records is None:
            decoders = {name: self.build(name, temperature, self.timed) for name in self.drafters}
            prompts = [self.timed.prompt(index) for index in range(len(timed))]
            skipped = _unusable(prompts, list(decoders.values()))
            if len(skipped) == len(prompts):
                raise _none_left(self.timed, skipped)
            runs = {name: decoder.generate for name, decoder in decoders.items()}
            usable = [prompt for prompt in prompts if prompt.id not in skipped]
            timings = measure(runs, usable, batch_size, repeats)
            rows = [
                {"decoder": name, "timing": asdict(timing) | {"skipped": skipped}}
                for name, timing in timings.items()
            ]
            self.times.add(key, rows, len(timings), temperature=temperature, batch_size=batch_size)
            records = self.times.get(key) or []
        try:
            return {record["decoder"]: Timing(**record["timing"]) for record in records}
        except (KeyError, TypeError) as error:
            what = f"a record is no timing ({error!r})"
            raise damaged(self.times.path, what, "Delete it, and times are measured again.") from error

    def _key(self, name: str, temperature: float, batch_size: int) -> str:
        return settings_key(self.settings(name, temperature) | {"batch_size": batch_size})


def _none_left(tasks: TaskSet, reasons: Mapping[str, str]) -> ValueError:
    counts = ", ".join(f"{reason} ({count})" for reason, count in Counter(reasons.values()).items())
    return ValueError(
        f"No prompt of {tasks.label} can be read: {counts}. Where they are too long, lower the processor's "
        "largest image size, take fewer frames of a video, or choose models with a longer context; take "
        "tokens that mark images out of the data."
    )


def _unusable(prompts: Sequence[Prompt], decoders: Sequence[Decoder]) -> dict[str, str]:
    """Why a model of the decoders cannot read some prompts, by their ids."""
    drafters = [decoder.drafter for decoder in decoders if isinstance(decoder, SpeculativeDecoder)]
    readers = [decoder.verifier.backbone for decoder in decoders[:1]]
    readers += [drafter.backbone for drafter in drafters if isinstance(drafter, RoutedDrafter)]
    found = {}
    for prompt in prompts:
        try:
            for reader in readers:
                reader.prepare(prompt)
        except UnusablePrompt as error:
            found[prompt.id] = error.reason
    return found


def _records(decoder: Decoder, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Answers as records; a prompt that a model cannot read gets one that says why."""
    try:
        return [to_record(answer) for answer in decoder.generate(prompts)]
    except UnusablePrompt as error:
        if len(prompts) == 1:
            return [{"id": prompts[0].id, "skipped": error.reason}]
        return [record for prompt in prompts for record in _records(decoder, [prompt])]
