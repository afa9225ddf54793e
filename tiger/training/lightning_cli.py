"""The Lightning verbs: fit, validate, test, predict."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

# Classes that nothing here uses are imported so that configs may name them without their module.
import callbacks  # noqa: F401
from data_modules import MixtureDataModule, SyntheticDataModule  # noqa: F401
from tiger.cli import PROGRAM
from tiger.training import (  # noqa: F401
    AcceptanceAlignment,
    DraftHeadDistillation,
    DraftTask,
    KDWarmStart,
)

# How the parser begins when a class behind `class_path` raises; what the class said is the cause.
NESTED = "Does not validate against any of the Union subtypes"


class SaveConfig(SaveConfigCallback):
    """Saves the resolved config into the folder of a training run, and as text into TensorBoard."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Saves nothing without a logger or outside of training: it would land in the working folder."""
        if stage == "fit" and trainer.logger is not None:
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Adds the config to TensorBoard."""
        if isinstance(trainer.logger, TensorBoardLogger):
            text = "\n".join(f"    {line}" for line in self.parser.dump(self.config).splitlines())
            trainer.logger.experiment.add_text("config", text, global_step=trainer.global_step)


class TigerCLI(LightningCLI):
    """LightningCLI whose config files are the only truth about model and data."""

    @classmethod
    def run(cls, verb: str, options: list[str]) -> TigerCLI:
        """Parses the options of a verb and runs it.

        Args:
            verb: One of fit, validate, test, predict.
            options: Arguments after the verb.
        """
        return cls.build([verb, *options])

    @classmethod
    def build(cls, args: list[str], run: bool = True) -> TigerCLI:
        """Parses arguments, builds trainer, model and data, and runs the verb.

        Args:
            args: The verb and its options.
            run: Whether there is a verb to run; without it, the arguments are options only.
        """
        return cls(
            DraftTask,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},
            parser_kwargs={"prog": PROGRAM, "allow_abbrev": False},
            args=args,
            run=run,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Lets the data module answer with the verifier of the task; set it under `model` only."""
        for name in ("verifier", "verifier_dtype", "verifier_quantization"):
            parser.link_arguments(f"model.init_args.{name}", f"data.init_args.{name}")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses the given arguments, without Lightning's warning that `sys.argv` has some too."""
        self.config = parser.parse_args(args)  # type: ignore[arg-type]

    def instantiate_classes(self) -> None:
        """Builds model, data and trainer.

        Raises:
            SystemExit: With code 2 if a class refuses its options, after printing what it says and no more.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            said: BaseException = error
            while str(said).startswith(NESTED) and said.__cause__ is not None:
                said = said.__cause__
            if not isinstance(said, ValueError | FileNotFoundError):
                raise
            print(f"{self.parser.prog}: error: {said}", file=sys.stderr)
            raise SystemExit(2) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer; without progress bar if `--trainer.enable_progress_bar false` says so."""
        options = self._get(self.config_init, "trainer")
        if options["enable_progress_bar"] is False:
            kept = [entry for entry in options["callbacks"] or [] if not isinstance(entry, ProgressBar)]
            options["callbacks"] = kept
        return super().instantiate_trainer(**kwargs)

    def _parse_ckpt_path(self) -> None:
        """Does nothing; Lightning would take the model's class and options from the checkpoint.

        https://github.com/Lightning-AI/pytorch-lightning/issues/21246
        """
