"""A built mixture as a Lightning data module."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

from data_modules.manifest import open_mixture
from data_modules.mixture import Mixture
from data_modules.prompt_data import PromptDataModule, Split


class MixtureDataModule(PromptDataModule):
    """The mixture of a folder that `python -m tiger data build` has written.

    Some pictures are held out for validation and test, the same for every seed of the order, verifier,
    `max_length` and `max_pixels`; training never shows them. Another mixture holds out others.

    Args:
        folder: The folder, with its `manifest.json`.
        num_validation: Validation examples, before those that are too long are dropped; the last picture
            comes with all its records.
        num_test: Test examples, likewise.
        options: Options of `PromptDataModule`.

    Raises:
        FileNotFoundError: If the folder has no manifest, or a data set is gone.
        ValueError: If an option is out of range, too few examples are left for training, or reference answers
            are asked of a mixture that lacks some.
    """

    def __init__(self, folder: str, num_validation: int = 300, num_test: int = 300, **options: Any) -> None:
        super().__init__(**options)
        if min(num_validation, num_test) < 0:
            raise ValueError(
                f"Need num_validation >= 0 and num_test >= 0, got {num_validation} and {num_test}."
            )
        self.folder = folder
        self.sizes: dict[str, int] = {"validation": num_validation, "test": num_test}

    def build(self, split: Split) -> Mixture:
        """The mixture of a split, of prompts that fit into `max_length`."""
        return self.whole.subset(split, self._indices[split])

    @cached_property
    def built(self) -> Mixture:
        """The mixture as it was built.

        Raises:
            ValueError: If reference answers are asked of a mixture that lacks some.
        """
        recipe, mixture = open_mixture(Path(self.folder))
        if self.responses == "dataset" and not recipe.require_answers:
            raise ValueError(
                f"{self.folder} was built with require_answers false, so some records have no reference "
                "answer. Set responses to verifier, or build it with require_answers true."
            )
        return mixture

    @cached_property
    def whole(self) -> Mixture:
        """The mixture of all splits, of prompts that fit into `max_length`."""
        return self.built.narrow(self.form.unusable, self.check_name, self.cache_dir)

    def reports(self) -> list[str]:
        """What the mixture was made of, and how many records each split has."""
        splits = ", ".join(f"{split} {len(mixture):,}" for split, mixture in self.mixtures.items())
        return [self.whole.report(), splits]

    @cached_property
    def _indices(self) -> dict[str, list[int]]:
        """Records of each split; hashes of pictures draw those held out, so equal pictures stay together."""
        counts = Counter(entry.picture for entry in self.built.index.entries)
        left, split_of = dict(self.sizes), {}
        for picture in sorted(counts):
            split_of[picture] = name = next((name for name in left if left[name] > 0), "train")
            if name in left:
                left[name] -= counts[picture]
        entries = self.whole.index.entries
        split: dict[str, list[int]] = {name: [] for name in ("train", *self.sizes)}
        for index, entry in enumerate(entries):
            split[split_of[entry.picture]].append(index)
        if not split["train"]:
            raise ValueError(
                f"{self.folder} has {len(entries)} records; num_validation "
                f"{self.sizes['validation']} and num_test {self.sizes['test']} leave none for "
                "training. Lower them."
            )
        return split
