"""A recipe: which sources a mixture takes how much of, and where their rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import IterableDataset

from data_modules.filters import QuestionFilter
from data_modules.hub import hub_file, open_rows
from data_modules.index import Rows, Share
from data_modules.mixture import Mixture, mix
from data_modules.reserved import ReservedImages, ReservedSet
from data_modules.sources import SOURCES, ScienceQA, Source, TallyQA
from data_modules.table_rows import JsonRows, Table, TableRows, fetch
from data_modules.world_rows import WorldRows


@dataclass(frozen=True)
class SourceOptions:
    """What a mixture takes from one source, and where it is.

    Attributes:
        count: Most records to keep; 0 leaves the source out.
        split: Name of the split; several are joined as in "validation+test".
        repos: Hub ids, tried in this order; the source's own by default.
        config: Configuration of the hub data set; the source's own by default.
        path: A local copy in place of the hub: a folder with the files of the hub repository, a folder of
            `save_to_disk`, a Parquet file, or the original JSON file.
        image_root: Folder that the paths in the rows start from.
        first_rows: Fetch only this many rows from the start of each split, as a stream; all by default.
        use_world: Whether the synthetic world stands in for the data set.
        is_one_per_image: Whether no two records may show the same picture.
    """

    count: int = 0
    split: str = "train"
    repos: tuple[str, ...] | None = None
    config: str | None = None
    path: str | None = None
    image_root: str | None = None
    first_rows: int | None = None
    use_world: bool = False
    is_one_per_image: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or (self.first_rows is not None and self.first_rows < 1):
            raise ValueError(
                f"Need count >= 0 and first_rows >= 1, got {self.count} and {self.first_rows}. Leave "
                "first_rows out to read all rows."
            )


@dataclass(frozen=True)
class Recipe:
    """All that a mixture is made from.

    Attributes:
        name: Name of the mixture.
        llava: LLaVA-1.5 on COCO, which also makes up for what the others lack.
        textvqa: TextVQA.
        scienceqa: ScienceQA; rows without a picture are left out.
        docvqa: DocVQA.
        tallyqa: TallyQA on COCO.
        chartqa: ChartQA.
        question_filter: Which questions are kept; None keeps all.
        require_answers: Whether records without a reference answer are left out.
        use_choices: Whether ScienceQA's prompts have hint and choices.
        use_guard: Whether images of evaluation sets are left out: those of `reserved`, and of TallyQA all
            that are not in COCO's train2017.
        reserved: Evaluation sets whose images are left out.
        seed: Seed of the order in which rows are taken.
    """

    name: str = "mixture"
    llava: SourceOptions = SourceOptions()
    textvqa: SourceOptions = SourceOptions()
    scienceqa: SourceOptions = SourceOptions()
    docvqa: SourceOptions = SourceOptions()
    tallyqa: SourceOptions = SourceOptions()
    chartqa: SourceOptions = SourceOptions()
    question_filter: QuestionFilter | None = None
    require_answers: bool = True
    use_choices: bool = False
    use_guard: bool = True
    reserved: tuple[ReservedSet, ...] = ()
    seed: int = 0

    @property
    def sources(self) -> dict[str, SourceOptions]:
        """The sources that are not left out, by name."""
        options = {name: getattr(self, name) for name in SOURCES}
        return {name: option for name, option in options.items() if option.count}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Recipe:
        """A recipe from the form in which a manifest has it."""
        values = dict(saved)
        for name in SOURCES:
            repos = values[name]["repos"]
            values[name] = SourceOptions(**values[name] | {"repos": repos and tuple(repos)})
        if values["question_filter"]:
            values["question_filter"] = QuestionFilter(**values["question_filter"])
        values["reserved"] = tuple(
            ReservedSet(**entry | {"repos": tuple(entry["repos"])}) for entry in values["reserved"]
        )
        return cls(**values)


def build_mixture(recipe: Recipe) -> Mixture:
    """Builds the mixture of a recipe.

    Raises:
        FileNotFoundError: If a data set is not found.
        ValueError: If a data set has other columns, or nothing is left after filtering.
    """
    reserved = ReservedImages(recipe.reserved if recipe.use_guard else ())
    return mix(recipe.name, open_shares(recipe), recipe.question_filter, reserved.reason)


def open_shares(recipe: Recipe) -> list[Share]:
    """Opens the data sets of a recipe.

    Raises:
        FileNotFoundError: If a data set is not found.
        ValueError: If a data set has other columns, or the recipe takes nothing.
    """
    if not recipe.sources:
        raise ValueError(f"The recipe {recipe.name} takes nothing; set the count of a source out of "
                         f"{', '.join(SOURCES)}.")  # fmt: skip
    total = sum(options.count for options in recipe.sources.values())
    return [
        Share(
            _reader(SOURCES[name], options, recipe),
            _rows(SOURCES[name], options, recipe.seed, total),
            options.count,
            options.is_one_per_image,
        )
        for name, options in recipe.sources.items()
    ]


def _reader(source: type[Source], options: SourceOptions, recipe: Recipe) -> Source:
    if source is ScienceQA:
        return ScienceQA(
            recipe.use_choices, image_root=options.image_root, require_answers=recipe.require_answers
        )
    if source is TallyQA:
        return TallyQA(options.image_root, recipe.require_answers, recipe.use_guard)
    return source(options.image_root, recipe.require_answers)


def _rows(source: type[Source], options: SourceOptions, seed: int, total: int) -> Rows:
    if options.use_world:
        return WorldRows(source.name, "train", seed, available=2 * total + 64)
    splits = options.split.split("+")
    return TableRows(source.name, {split: _table(source, options, split) for split in splits}, seed)


def _table(source: type[Source], options: SourceOptions, split: str) -> Table:
    """The rows of one split.

    Raises:
        ValueError: If the source has no hub id and none is given, or its columns are others.
    """
    path = Path(options.path) if options.path else None
    table: Any
    if path and path.suffix in (".json", ".jsonl"):
        table = JsonRows(path)
    elif path is None and options.repos is None and source.file:
        table = JsonRows(hub_file(source.repos, source.file))
    elif path is None and not (options.repos or source.repos):
        raise ValueError(
            f"{source.name} is on no hub in a usable form; set its path to the original file and its "
            "image_root (see docs/data.md), or its repos to a data set that holds the pictures."
        )
    else:
        own = path is None and options.repos is None
        config = options.config or (source.config if own else None)
        is_stream = options.first_rows is not None
        table = open_rows(options.repos or source.repos, path, split, config, is_stream)
    if isinstance(table, IterableDataset):
        table = fetch(table, options.first_rows or 1)
    source.check_columns(table.column_names)
    return table
