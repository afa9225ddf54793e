"""Drafting methods by name: those that need no trained model, with their options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tiger.drafting.prompt_lookup import PromptLookup
from tiger.drafting.racer import Racer
from tiger.drafting.token_recycling import TokenRecycling
from tiger.drafting.training_free import TrainingFree

METHODS: dict[str, type[TrainingFree[Any]]] = {
    "prompt_lookup": PromptLookup,
    "token_recycling": TokenRecycling,
    "racer": Racer,
}
Built = TypeVar("Built")


def method_options(name_or_file: str, known: Collection[str] = tuple(METHODS)) -> dict[str, Any] | None:
    """The entry `method` and the options of a method that loads no model of its own.

    Args:
        name_or_file: Name of a method, or a YAML file with the entry `method` and any of its options.
        known: Names of the methods; the training-free ones by default.

    Returns:
        The entries; None for any other name, which is that of a model.

    Raises:
        FileNotFoundError: If there is no such YAML file.
        ValueError: If the file names no known method.
    """
    if name_or_file in known:
        return {"method": name_or_file}
    if not name_or_file.endswith((".yaml", ".yml")):
        return None
    if not Path(name_or_file).is_file():
        raise FileNotFoundError(
            f"There is no file {name_or_file!r}; give one of configs/drafter or configs/pruner."
        )
    options = yaml.safe_load(Path(name_or_file).read_text())
    if not isinstance(options, dict) or options.get("method") not in known:
        raise ValueError(f"{name_or_file} must have an entry `method`: one of {', '.join(known)}.")
    return options


def build_method(options: dict[str, Any]) -> TrainingFree[Any]:
    """The drafter of `method_options`.

    Raises:
        ValueError: If an option is unknown or out of range.
    """
    return build(METHODS, options)


def build(methods: Mapping[str, Callable[..., Built]], options: Mapping[str, Any], *first: Any) -> Built:
    """What `method_options` describes.

    Args:
        methods: Classes by name.
        options: The entry `method` and options of the class.
        first: Arguments in front of the options.

    Raises:
        ValueError: If an option is unknown or out of range.
    """
    method = methods[options["method"]]
    try:
        return method(*first, **{name: value for name, value in options.items() if name != "method"})
    except TypeError as error:
        raise ValueError(f"Method {options['method']!r} cannot take {options}: {error}.") from error
