"""The model card of a published drafter: what it is, what was measured of it, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCardData

from tiger.report import tables

ROUTED = "tiger"  # the method of a routed drafter
FIGURES = ("T", "Batch", "AccLen [95 %]", "A≥2", "A≥4", "A≥8", "Tokens/s", "Speedup", "Exact")
LEGEND = (
    "AccLen is the mean number of drafted tokens that the verifier accepts in a round, with its 95 % "
    "interval over prompts; A≥n the share of rounds with n or more; speedup is over the verifier decoding "
    "alone; exact the share of greedy answers equal to its own."
)
COMMAND = """```bash
python -m tiger generate --images photo.jpg --prompt 'What does the sign say?' \\
  --verifier {verifier} --drafter {name}
```
"""
PYTHON = """```python
from tiger.backbones.loading import load_backbone
from tiger.decoding.speculative import SpeculativeDecoder
{imports}

verifier = load_backbone("{verifier}")
drafter = {load}
decoder = SpeculativeDecoder(verifier, drafter, block_size=8, max_new_tokens=128)
```
"""
CONVERT = """The files are in the layout of vLLM's speculators. TIGER reads them after

```bash
python -m tiger export {name} converted --verifier {verifier}
```
"""


@dataclass(frozen=True)
class Card:
    """What a card says.

    Attributes:
        name: Name of the folder.
        method: `tiger` for a routed drafter, or the name of a head's method.
        format: Layout of the files: `tiger` or `speculators`.
        parameters: Weights of the drafter.
        settings: Its options.
        notes: What its folder says of its training.
        verifier: Name of the verifier; None if it was not given.
        is_on_hub: Whether the verifier's name is a hub id.
        sizes: Sizes of the verifier, by name.
        cells: Entries of `metrics.json` for this drafter.
    """

    name: str
    method: str
    format: str
    parameters: int
    settings: Mapping[str, Any]
    notes: Mapping[str, Any]
    verifier: str | None
    is_on_hub: bool
    sizes: Mapping[str, int]
    cells: Sequence[tables.Cell]

    def text(self) -> str:
        """The card in Markdown, with the hub's header."""
        base = self.verifier.partition("@")[0] if self.verifier and self.is_on_hub else None
        data = ModelCardData(
            library_name="tiger-vlm", base_model=base, tags=["speculative-decoding", self.method]
        )
        kind = "routed drafter" if self.method == ROUTED else f"`{self.method}` draft head"
        whose = f"`{self.verifier}`" if self.verifier else "a verifier that was not named"
        parts = {
            f"# {self.name}": f"A {kind} for exact speculative decoding of {whose} with TIGER: answers are "
            "the verifier's own, drafted tokens only make them come faster.\n",
            "## Sizes": _list({"drafter weights": f"{self.parameters:,d}"} | dict(self.settings))
            + _list({f"verifier {key}": f"{size:,d}" for key, size in self.sizes.items()}),
            "## Measured": self._measured(),
            "## Training": _list(self.notes) or "The drafter came without notes on its training.\n",
            "## Use": self._use(),
        }
        return f"---\n{data.to_yaml()}\n---\n" + "".join(
            f"\n{title}\n\n{text}" for title, text in parts.items()
        )

    def _measured(self) -> str:
        if not self.cells:
            return "Not measured.\n"
        rows = [
            [str(cell["dataset"]), str(cell["num_prompts"]), str(cell["block_size"])]
            + tables.pick([tables.table_row(cell)], FIGURES)[0]
            for cell in self.cells
        ]
        columns = ("Set", "Prompts", "Block size", *FIGURES)
        places = {f"{cell['device']} (threads: {cell['num_threads'] or 'all'})" for cell in self.cells}
        timed = sorted({str(cell["speed_dataset"]) for cell in self.cells})
        where = f"Speed was measured on {' and '.join(sorted(places))}, with prompts of {', '.join(timed)}."
        return f"{tables.markdown(columns, rows)}\n{LEGEND} {where}\n"

    def _use(self) -> str:
        words = {"name": self.name, "verifier": self.verifier or "VERIFIER"}
        if self.format == "speculators":
            return CONVERT.format(**words)
        if self.method == ROUTED:
            imports, load = "from tiger.drafting.saving import load_drafter", f'load_drafter("{self.name}")'
        else:
            imports = "from pathlib import Path\nfrom tiger.drafting.heads.saving import load_head"
            load = f'load_head(Path("{self.name}"), verifier)'
        return COMMAND.format(**words) + "\n" + PYTHON.format(**words, imports=imports, load=load)


def _list(entries: Mapping[str, Any]) -> str:
    return "".join(f"- {key}: {value}\n" for key, value in entries.items())
