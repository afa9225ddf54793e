"""The synthetic world in the paper's mixtures, as a Lightning data module."""

from __future__ import annotations

from typing import Any, Literal

from data_modules.filters import QuestionFilter
from data_modules.index import Share
from data_modules.mixture import PAPER_SHARES, Mixture, mix, proportions
from data_modules.prompt_data import PromptDataModule, Split
from data_modules.sources import SOURCES
from data_modules.synthetic.world import KINDS
from data_modules.world_rows import KIND_OF_SOURCE, WorldRows

MixtureName = Literal["kd", "align", "uniform"]


class SyntheticDataModule(PromptDataModule):
    """Rendered pictures with questions, mixed like the paper's training data; no download.

    Args:
        num_train: Training examples.
        num_validation: Validation examples, the same for every seed.
        num_test: Test examples, the same for every seed.
        mixture: Shares of the sources in training: the paper's KD or alignment recipe, or equal ones.
        evaluation_mixture: Shares in validation and test.
        kinds: Kinds of pictures to use, all by default.
        question_filter: Which questions are kept; the paper's rules by default.
        options: Options of `PromptDataModule`.

    Raises:
        ValueError: If an option is out of range, or a split is empty after filtering.
    """

    def __init__(
        self,
        num_train: int = 20_000,
        num_validation: int = 300,
        num_test: int = 300,
        mixture: MixtureName = "kd",
        evaluation_mixture: MixtureName = "uniform",
        kinds: list[str] | None = None,
        question_filter: QuestionFilter | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_options(mixture, evaluation_mixture, kinds)
        if num_train < 1 or min(num_validation, num_test) < 0:
            raise ValueError(
                "Need num_train >= 1, num_validation >= 0 and num_test >= 0, got "
                f"{num_train}, {num_validation} and {num_test}."
            )
        self.sizes: dict[str, int] = {"train": num_train, "validation": num_validation, "test": num_test}
        self.mixture, self.evaluation_mixture = mixture, evaluation_mixture
        self.kinds = kinds or list(KINDS)
        self.question_filter = question_filter or QuestionFilter()

    def build(self, split: Split) -> Mixture:
        """The mixture of a split, of prompts that fit into `max_length`."""
        name = self.mixture if split == "train" else self.evaluation_mixture
        sources = [source for source in SOURCES.values() if KIND_OF_SOURCE[source.name] in self.kinds]
        shares = PAPER_SHARES.get(name, {})
        total = self.sizes[split]
        counts = proportions(total, {source.name: shares.get(source.name, 1) for source in sources})
        own_answers = split == "train" and self.responses == "verifier"
        return mix(
            split,
            [
                Share(
                    source(require_answers=not own_answers),
                    WorldRows(source.name, split, self.seed, available=2 * total + 64),
                    counts[source.name],
                )
                for source in sources
            ],
            self.question_filter,
            self.form.unusable,
            self.check_name,
            self.cache_dir,
        )


def check_options(mixture: str, evaluation_mixture: str, kinds: list[str] | None) -> None:
    """Checks the named options of the data module.

    Raises:
        ValueError: Naming the option, its value and what is allowed.
    """
    names = ("kd", "align", "uniform")
    allowed = {
        "mixture": (mixture, names),
        "evaluation_mixture": (evaluation_mixture, names),
        **{f"kinds[{i}]": (kind, KINDS) for i, kind in enumerate(kinds or [])},
    }
    for option, (value, choices) in allowed.items():
        if value not in choices:
            raise ValueError(f"{option} is {value!r}; choose from {', '.join(choices)}.")
