"""The verb `data preview`: shows which tokens of an example a draft head learns from."""

from __future__ import annotations

from itertools import groupby

import torch
from lightning.pytorch.cli import LightningArgumentParser

from data_modules.collate import Example
from tiger.training.draft_head_distillation import DraftHeadDistillation
from tiger.training.lightning_cli import TigerCLI
from tiger.training.supervision import check_supervision


class PreviewCLI(TigerCLI):
    """The options of `fit`, and which example is shown."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the number of the example."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--example", type=int, default=0, help="Number of the training example.")


def preview(options: list[str]) -> str:
    """Prints an example's tokens, supervised ones marked, as the first step of training would have them.

    Args:
        options: Config files and options of `fit`, with `--example`.

    Returns:
        What was printed.

    Raises:
        ValueError: If the task trains no draft head, there is no such example, or no token is supervised.
    """
    cli = PreviewCLI.build(options, run=False)
    task, number = cli.model, int(cli.config["example"])
    if not isinstance(task, DraftHeadDistillation):
        raise ValueError(
            "preview shows what draft heads learn from; give a config with DraftHeadDistillation, such as "
            "configs/experiment/tiny_medusa.yaml."
        )
    task.prepare_data()
    cli.datamodule.setup("fit")
    examples = cli.datamodule.train_dataloader().dataset
    if not 0 <= number < len(examples):
        raise ValueError(f"example is {number}; the training data have 0 to {len(examples) - 1}.")
    task.configure_model()
    task.to(cli.trainer.strategy.root_device)
    task.choose_vocabulary(examples)
    text = describe(task, examples[number])
    print(text)
    return text


@torch.no_grad()
def describe(task: DraftHeadDistillation, example: Example) -> str:
    """One line per stretch of supervised or other tokens, and their share.

    Raises:
        ValueError: If no token is supervised.
    """
    (marks,) = task.judge([example], 0).marks
    (lesson,) = task.head_lessons([example])
    tokenizer = task.verifier.tokenizer
    lines = [f"{example.prompt.id} ({example.source}, {example.tag}), without its first token:"]
    kinds = torch.stack([marks, lesson.row.visual], 1).tolist()
    places = zip(kinds, lesson.row.tokens.tolist(), strict=True)
    for (supervised, visual), run in groupby(places, key=lambda place: place[0]):
        tokens = [token for _, token in run]
        mark = "* supervised" if supervised else "  read"
        shown = "visual tokens" if visual else repr(" | ".join(map(tokenizer.decode, tokens)))
        lines.append(f"{mark:<13}{len(tokens):>5}  {shown}")
    count, total = int(marks.sum()), len(marks)
    lines.append(f"supervised: {count} of {total} tokens ({count / total:.1%})")
    check_supervision(marks)
    return "\n".join(lines)
