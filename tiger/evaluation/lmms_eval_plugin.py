"""The model `tiger` of lmms-eval: `python -m lmms_eval --model tiger --model_args verifier=...,drafter=...`.

lmms-eval finds `manifest` through the entry point group `lmms_eval.models` and then imports the class by the
name `Tiger` from here. The class is made on that access, so this module imports without lmms-eval.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from PIL.Image import Image

from tiger.backbones.base import Prompt
from tiger.backbones.loading import load_backbone
from tiger.backbones.videos import load_video
from tiger.decoding.acceptance import Sampling
from tiger.decoding.pruners import is_pruner
from tiger.evaluation.building import Decoder, build_decoder, load_method
from tiger.metrics.acceptance import AcceptanceMetrics

Settings = tuple[int, Sampling]


def manifest() -> Any:
    """What lmms-eval's registry asks for: the name of the model and where its class is."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="tiger", simple_class_path=f"{__name__}.Tiger")


def __getattr__(name: str) -> Any:
    """Gives `Tiger`, which needs lmms-eval."""
    if name == "Tiger":
        return _tiger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _tiger() -> type:
    from lmms_eval.api.model import lmms

    return type("Tiger", (LmmsEvalModel, lmms), {"__module__": __name__})


class LmmsEvalModel:
    """Answers of a pair in the interface of lmms-eval's simple models; one process.

    Args:
        verifier: Folder, hub id or shipped name.
        drafter: What drafts, as in `benchmark`: a model, a draft head, or a training-free method or pruner by
            name or file; "none" decodes autoregressively. With a pruner the answers are not the verifier's.
        block_size: Tokens drafted in one round.
        num_routed: Visual tokens routed per round (K) of a routed drafter; None for its own setting.
        dtype: Name of a torch dtype.
        device: Where both models go; None leaves them on the CPU.
        batch_size: Requests that are decoded together.
        seed: Seed of sampling.
        system: System message; the default is that of lmms-eval's Qwen models.
        video_fps: Frames of a video to read per second.
        max_frames: Most frames to read of a video.

    Attributes:
        task_dict: Rows of each task by split, filled by lmms-eval.

    Raises:
        ValueError: If the batch size is no number, or several processes were started.
    """

    is_simple = True
    task_dict: Mapping[str, Mapping[str, Any]]
    cache_hook: Any

    def __init__(
        self,
        verifier: str = "tiny/verifier",
        drafter: str | None = "tiny/tiger",
        block_size: int = 8,
        num_routed: int | None = None,
        dtype: str = "bfloat16",
        device: str | None = None,
        batch_size: int | str = 1,
        seed: int = 0,
        system: str = "You are a helpful assistant.",
        video_fps: float = 1.0,
        max_frames: int = 64,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdecimal() or not int(batch_size):
            raise ValueError(f"batch_size is {batch_size!r}; give a number, it is not found automatically.")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                "The model 'tiger' of lmms-eval runs in one process. Start it without a launcher, or measure "
                "with `python -m tiger benchmark`."
            )
        self.backbone = load_backbone(verifier, dtype)
        if device:
            self.backbone.to(device)
        name = drafter if drafter and drafter.lower() != "none" else None
        self.method = None if name is None else load_method(name, self.backbone, dtype, num_routed)
        if is_pruner(name):
            print(f"lossy: with {name} the answers are not the verifier's own", file=sys.stderr)
        self.block_size, self.batch_size, self.seed = block_size, int(batch_size), seed
        self.system, self.video_fps, self.max_frames = system, video_fps, max_frames
        self.acceptance = AcceptanceMetrics(block_size)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Answers to requests of (context, generation options, doc_to_visual, doc id, task, split), in order.

        Requests with the same options are decoded together. An answer is cut at the first of its stop texts
        (`until`); an empty line is none, because lmms-eval adds it to every task.
        """
        seen: Counter[str] = Counter()
        groups: dict[Settings, list[tuple[int, Prompt]]] = {}
        for index, request in enumerate(requests):
            prompt = self._prompt(request.args, seen)
            groups.setdefault(_settings(request.args[1]), []).append((index, prompt))
        texts = [""] * len(requests)
        for (max_new_tokens, sampling), members in groups.items():
            decoder = self._decoder(max_new_tokens, sampling)
            for start in range(0, len(members), self.batch_size):
                batch = members[start : start + self.batch_size]
                answers = decoder.generate([prompt for _, prompt in batch])
                self.acceptance.update(answers)
                for (index, _), answer in zip(batch, answers, strict=True):
                    context, options = requests[index].args[:2]
                    texts[index] = _cut(answer.text, options.get("until"))
                    self.cache_hook.add_partial("generate_until", (context, options), texts[index])
        if texts and (figures := self.acceptance.compute())["rounds"]:
            print(f"AccLen {figures['acclen']:.2f}, {figures['rounds']} rounds", file=sys.stderr)
        return texts

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not offered: the decoder generates.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("The model 'tiger' generates; choose tasks of the type generate_until.")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        """Not offered: a request is one question.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("The model 'tiger' answers single questions; choose tasks of one round.")

    def _decoder(self, max_new_tokens: int, sampling: Sampling) -> Decoder:
        return build_decoder(self.backbone, self.method, self.block_size, max_new_tokens, sampling, self.seed)

    def _prompt(self, args: tuple[Any, ...], seen: Counter[str]) -> Prompt:
        """A prompt named by task, split, row and how often that row has come."""
        context, _, doc_to_visual, doc_id, task, split = args
        name = f"{task}/{split}/{doc_id}"
        seen[name] += 1
        visuals = doc_to_visual(self.task_dict[task][split][doc_id]) or []
        images = tuple(visual.convert("RGB") for visual in visuals if isinstance(visual, Image))
        paths = [visual for visual in visuals if isinstance(visual, str)]
        if len(images) + len(paths) != len(visuals):
            kinds = sorted({type(visual).__name__ for visual in visuals})
            raise ValueError(f"{name} has visuals of {kinds}; images and video files can be read.")
        videos = tuple(load_video(path, self.video_fps, self.max_frames) for path in paths)
        text = context.replace("<image>", "").strip()
        return Prompt(text, images, self.system, f"{name}/{seen[name]}", videos)


def _settings(options: Mapping[str, Any]) -> Settings:
    """Longest answer and sampling that a request asks for; greedy unless it wants samples."""
    if int(options.get("num_beams") or 1) > 1:
        raise ValueError(
            f"num_beams is {options['num_beams']}; speculative decoding has no beams, leave it at 1."
        )
    temperature = float(options.get("temperature") or 0.0) if options.get("do_sample", True) else 0.0
    sampling = Sampling()
    if temperature > 0:
        sampling = Sampling(temperature, int(options.get("top_k") or 0), float(options.get("top_p") or 1.0))
    return int(options.get("max_new_tokens") or 128), sampling


def _cut(text: str, until: str | Sequence[str] | None) -> str:
    """The text before the first stop text."""
    stops = [until] if isinstance(until, str) else until or []
    for stop in stops:
        if stop and stop != "\n\n":
            text = text.split(stop)[0]
    return text
