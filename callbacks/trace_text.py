"""Rounds of a few validation answers as text."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from callbacks.run_folder import tensorboard
from tiger.decoding.records import Generation
from tiger.report.trace_page import Trace, trace_data


class TraceText(Callback):
    """Writes the rounds of the first validation answers to TensorBoard as trace/0, trace/1, ...

    Args:
        num_examples: Answers written per validation.
    """

    def __init__(self, num_examples: int = 4) -> None:
        self.num_examples = num_examples
        self.written = 0

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts with the first answers again."""
        self.written = 0

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes the answers of a batch until there are enough."""
        writer = tensorboard(trainer)
        if writer is None or trainer.sanity_checking or not trainer.is_global_zero:
            return
        generations: list[Generation] = outputs
        verifier: Any = pl_module.verifier
        for example, generation in zip(batch.examples, generations, strict=True):
            if self.written < self.num_examples:
                trace = trace_data(Trace(example.prompt, generation), verifier.tokenizer)
                text = describe(example.prompt.text, trace)
                writer.add_text(f"trace/{self.written}", text, trainer.global_step)
                self.written += 1


def describe(question: str, trace: dict[str, Any]) -> str:
    """Question, answer and a Markdown table with one row per round.

    Args:
        question: What was asked.
        trace: What `trace_data` found.
    """
    lines = [f"**{_plain(question)}**", "", _plain(trace["answer"]), ""]
    lines += ["| round | accepted | added by the verifier | rejected |", "|---|---|---|---|"]
    for number, entry in enumerate(trace["rounds"], 1):
        fates = {"accepted": "", "rejected": "", "unused": ""}
        for token in entry["drafted"]:
            fates[token["fate"]] += token["text"]
        cells = [fates["accepted"], entry["bonus"] or "", fates["rejected"]]
        lines.append(f"| {number} | {' | '.join(map(_plain, cells))} |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = text.replace("\n", "⏎")
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#~" else sign for sign in text)
