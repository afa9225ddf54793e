"""The verb `plan`: reads the configs of a pair and a stage as `fit` does, and prints what they cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, OptimizerCallable

from tiger.cli import PROGRAM
from tiger.planning.configs import load_config
from tiger.planning.memory import BITS, WIDTHS
from tiger.planning.plan import (
    Memory,
    Stage,
    decoding_memory,
    fitting,
    training_memory,
    work_per_pass,
)
from tiger.planning.report import fitting_line, memory_table, parse_bytes, work_table
from tiger.planning.shapes import adapter_parameters, shape_of
from tiger.planning.workload import Workload
from tiger.training import AcceptanceAlignment, DraftHeadDistillation, DraftTask
from tiger.training.teacher_cache import SETTINGS, TOP_K, read_settings

SIZES = {"prompt_tokens": 64, "visual_tokens": 1024, "answer_tokens": 256}
# What `fit` gets from other files or needs not know: replaced by the first config that says otherwise.
DEFAULTS = ("--model=KDWarmStart", "--data=SyntheticDataModule", "--trainer.precision=bf16-mixed")


def plan(options: list[str]) -> Memory:
    """Prints memory and work of a stage.

    Args:
        options: Configs and options of `fit`, and `--gpu_memory`, `--prompt_tokens`, `--visual_tokens` and
            `--answer_tokens`. Without a word on precision it is bf16-mixed.

    Returns:
        The memory of a training step.

    Raises:
        ValueError: If a size is out of range, LoRA matches nothing, or the task trains a draft head.
        FileNotFoundError: If a configuration cannot be found.
    """
    parser = _parser()
    config = parser.parse_args([*DEFAULTS, *options])
    budget = parse_bytes(config.gpu_memory)
    for name in SIZES:
        if config[name] < 0 or (name == "answer_tokens" and config[name] < 1):
            raise ValueError(f"{name} is {config[name]}; give a count of tokens, for an answer 1 or more.")
    task: DraftTask = parser.instantiate(Namespace(model=config.model)).model
    if isinstance(task, DraftHeadDistillation):
        raise ValueError("plan counts routed drafters; a draft head has a layer or less. Name another task.")
    settings = task.options
    drafter_config = load_config(settings.drafter)
    verifier, drafter = shape_of(load_config(settings.verifier)), shape_of(drafter_config)
    work = _workload(task, config)
    stage = _stage(task, config.trainer, drafter_config)
    found = training_memory(verifier, drafter, work, stage)
    for role, shape in (("verifier", verifier), ("drafter", drafter)):
        print(f"{role:9} {settings[role]}: {shape.parameters:,} parameters")
    print(
        f"{'alignment' if stage.align else 'KD'}, {config.trainer.precision}, batch {work.batch}, "
        f"{work.num_anchors} anchors, group {work.group}, block {work.block_size}; "
        f"{work.prompt_tokens} prompt, {work.visual_tokens} visual and {work.answer_tokens} answer tokens"
    )
    decoding = decoding_memory(verifier, drafter, work, stage)
    sizes = fitting(verifier, drafter, work, stage, budget)
    for section in (
        memory_table("training", found),
        memory_table("decoding", decoding),
        fitting_line(config.gpu_memory, sizes),
        work_table(work_per_pass(verifier, drafter, work, stage)),
    ):
        print(f"\n{section}")
    return found


def _parser() -> LightningArgumentParser:
    """The parser of `fit` without what only a run needs."""
    import callbacks  # noqa: F401  # so that configs may name its classes
    from data_modules import MixtureDataModule, SyntheticDataModule  # noqa: F401

    parser = LightningArgumentParser(prog=f"{PROGRAM} plan", allow_abbrev=False)
    parser.add_argument("-c", "--config", action="config", help="configs of pair, stage and trainer")
    parser.add_argument("--gpu_memory", type=str, default="80GiB", help="memory of a card")
    for name, value in SIZES.items():
        parser.add_argument(
            f"--{name}", type=int, default=value, help=f"{name.replace('_', ' ')} per example"
        )
    parser.add_argument("--seed_everything", type=bool | int, default=0, help="not used")
    parser.add_argument("--ckpt_path", type=str | None, default=None, help="not used")
    parser.add_subclass_arguments(DraftTask, "model", required=False)
    parser.add_subclass_arguments(LightningDataModule, "data", required=False, instantiate=False)
    parser.add_class_arguments(Trainer, "trainer", instantiate=False)
    return parser


def _workload(task: DraftTask, config: Namespace) -> Workload:
    options = task.options
    num_routed = options.num_routed or 8
    return Workload(
        batch=config.data.init_args.get("batch_size") or 1,
        prompt_tokens=config.prompt_tokens,
        visual_tokens=config.visual_tokens,
        answer_tokens=config.answer_tokens,
        num_anchors=options.num_anchors,
        group=options.group_size if isinstance(task, AcceptanceAlignment) else 1,
        block_size=options.block_size,
        num_routed=config.visual_tokens if options.selector == "full" else num_routed,
        layout=options.layout or "suffix",
        routed=options.selector in (None, "routed"),
        rollout_chunk=options.get("rollout_chunk"),
    )


def _stage(task: DraftTask, trainer: Namespace, drafter: Any) -> Stage:
    options = task.options
    precision = str(trainer.precision)
    align = isinstance(task, AcceptanceAlignment)
    compared = isinstance(task, AcceptanceAlignment) and task.compares
    guided = options.guidance_weight and options.selector in (None, "routed")
    if options.verifier_dtype not in WIDTHS:
        raise ValueError(f"verifier_dtype is {options.verifier_dtype!r}; choose one of {', '.join(WIDTHS)}.")
    cpu = trainer.accelerator == "cpu"
    half = precision in ("bf16-true", "16-true", "bf16", "16")
    return Stage(
        align=align,
        reference=align and bool(options.beta),
        compared=compared,
        verifier_width=WIDTHS[options.verifier_dtype],
        verifier_bits=BITS.get(options.verifier_quantization),
        mixed="mixed" in precision or half,
        drafter_width=2 if half else 4,
        fused=not cpu,
        foreach=not cpu,
        states=optimizer_states(task.optimizer),
        guidance_layers=options.guidance_layers if guided else 0,
        train_vision=options.train_vision,
        adapters=None if task.lora is None else adapter_parameters(drafter, task.lora),
        recompute=options.gradient_checkpointing,
        top_k=_kept_tokens(options.get("teacher_cache")),
    )


def _kept_tokens(folder: str | None) -> int | None:
    """Tokens of each place that a teacher cache keeps, by default where it is not made yet."""
    if not folder:
        return None
    return read_settings(Path(folder)).top_k if (Path(folder) / SETTINGS).is_file() else TOP_K


def optimizer_states(factory: OptimizerCallable) -> float:
    """Values per parameter that an optimizer keeps, counted on one small matrix."""
    parameter = torch.nn.Parameter(torch.zeros(64, 64))
    parameter.grad = torch.ones_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = factory([parameter])
        optimizer.step()
    values = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum(value.numel() for value in values if value.numel() > 1) / parameter.numel()
