"""Pages that mkdocs makes from the repository: verbs, options, and files that pages link to.

Pages link to files of the repository by their relative paths; the site then holds copies.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
OURS = ("tiger", "callbacks", "data_modules")
HIDDEN = "---\nsearch:\n  exclude: true\n---\n"
sys.path.insert(0, str(ROOT))

origins: dict[str, str] = {}  # path in the repository by page


def on_files(files: Files, config: Any) -> Files:
    """Adds the home page, the generated reference, and every file that a page links to."""
    origins.clear()
    origins.update({file.src_uri: f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")})
    origins["index.md"] = "README.md"
    pages = {"index.md": (ROOT / "README.md").read_text()}
    pages |= {"reference/verbs.md": verbs_page(), "reference/options.md": options_page()}
    waiting = [(ROOT / path).read_text() for path in origins.values()]
    for text, path in iterate_links(waiting, list(origins.values())):
        uri = page_of(path)
        if uri not in origins and not path.startswith("docs/"):
            origins[uri] = path
            pages[uri] = text
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points links to files of the repository at their copies in the site."""
    uri = page.file.src_uri
    if uri not in origins:
        return markdown

    def moved(match: re.Match[str]) -> str:
        path = repository_path(match[1], origins[uri])
        return match[1] if path is None else posixpath.relpath(page_of(path), posixpath.dirname(uri) or ".")

    return LINK.sub(moved, markdown)


def iterate_links(texts: list[str], paths: list[str]) -> Iterator[tuple[str, str]]:
    """Text and path of every file outside of docs/ that pages, or files they link to, link to."""
    waiting = list(zip(texts, paths, strict=True))
    seen = set(paths)
    while waiting:
        text, origin = waiting.pop()
        for target in LINK.findall(text):
            path = repository_path(target, origin)
            if path is None or path in seen or path.startswith("docs/"):
                continue
            seen.add(path)
            copy = shown(path)
            yield copy, path
            if path.endswith(".md"):
                waiting.append((copy, path))


def repository_path(target: str, origin: str) -> str | None:
    """Path in the repository of a link's target; None for addresses and for what does not exist."""
    if ":" in target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if (ROOT / path).exists() else None


def page_of(path: str) -> str:
    """The site's page for a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def shown(path: str) -> str:
    """A file, or the files of a folder with the first lines of their docstrings, as a page."""
    file = ROOT / path
    if file.is_dir():
        lines = [f"| `{part.name}` | {summary(part)} |" for part in sorted(file.glob("*.py"))]
        return f"{HIDDEN}# {path}\n\n| file | what it holds |\n|---|---|\n" + "\n".join(lines)
    text = file.read_text()
    if path.endswith(".md"):
        return HIDDEN + text
    return f"{HIDDEN}# {path}\n\n````{file.suffix.removeprefix('.') or 'text'}\n{text}````\n"


def summary(file: Path) -> str:
    """First line of a Python file's docstring."""
    return file.read_text().partition('"""')[2].partition("\n")[0].removesuffix('"""')


def verbs_page() -> str:
    """The help texts of the command line."""
    from tiger.cli import DATA, PROGRAM, VERBS

    lines = ["# Every verb and its options", "", "Made from the code by `make docs`.", ""]
    words = {verb: [verb] for verb in VERBS if verb != "data"} | {
        f"data {name}": ["data", name] for name in DATA
    }
    described = VERBS | {f"data {name}": line for name, line in DATA.items()}
    for name, verb in words.items():
        lines += [f"## {name}", "", described[name], ""]
        lines += [
            f'??? note "{PROGRAM} {name} --help"',
            "",
            *indented(["```text", *help_text(verb), "```"]),
            "",
        ]
    return "\n".join(lines)


def indented(lines: list[str]) -> list[str]:
    """Lines as the content of a box."""
    return [f"    {line}".rstrip() for line in lines]


def help_text(words: list[str]) -> list[str]:
    """Lines of a verb's help."""
    from tiger.cli import main

    written, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "110"
    try:
        with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return written.getvalue().replace(str(ROOT), ".").splitlines()


def options_page() -> str:
    """Options of every class that a config may name, with types, defaults and meanings."""
    import callbacks
    import data_modules
    import tiger.training
    from tiger.decoding.pruners import PRUNERS
    from tiger.drafting.heads.methods import HEADS
    from tiger.drafting.lora import Lora
    from tiger.drafting.methods import METHODS
    from tiger.training.strategy import FSDP2Strategy

    tasks = [getattr(tiger.training, name) for name in tiger.training.__all__ if name != "DraftTask"]
    data = [getattr(data_modules, name) for name in data_modules.__all__ if name.endswith("DataModule")]
    groups = {
        "Stages: `model`": tasks,
        "Adapters: `model.init_args.lora`": [Lora],
        "Heads: `model.init_args.head`": list(HEADS.values()),
        "Data: `data`": data,
        "Callbacks: `trainer.callbacks`": [getattr(callbacks, name) for name in callbacks.__all__],
        "Strategy: `trainer.strategy`": [FSDP2Strategy],
        "Training-free drafters: `configs/drafter/`": list(METHODS.values()),
        "Pruned verifiers: `configs/pruner/`": list(PRUNERS.values()),
    }
    lines = ["# Every config key", "", "Made from the code by `make docs`. Options of the trainer are", ""]
    lines[-2] += " [Lightning's](https://lightning.ai/docs/pytorch/stable/common/trainer.html)."
    for title, members in groups.items():
        lines += [f"## {title}", ""]
        for member in members:
            lines += [f"### {member.__name__}", "", (member.__doc__ or "").partition("\n\n")[0], ""]
            lines += options_table(member)
    return "\n".join(lines)


def options_table(member: type) -> list[str]:
    """A table with the constructor's options; empty without any, or where the constructor is a library's."""
    from jsonargparse import ArgumentParser

    if owner(member).partition(".")[0] not in OURS:
        return []
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(member, fail_untyped=False)
    rows = []
    for action in parser._actions:
        kind = getattr(action, "_typehint", None) or action.type
        if kind is not None and (name := type_name(kind)) != "Backbone":
            default = "required" if action.required else cell(repr(action.default))
            meaning = " ".join((action.help or "").split()).replace("|", "\\|")
            rows.append(f"| `{action.dest}` | {cell(name)} | {default} | {meaning} |")
    return ["| option | type | default | meaning |", "|---|---|---|---|", *rows, ""] if rows else []


def owner(member: type) -> str:
    """Module of the class that the constructor comes from."""
    return next(kind.__module__ for kind in member.__mro__ if "__init__" in vars(kind))


def type_name(kind: Any) -> str:
    """A type as it is written, without modules."""
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", name)


def cell(text: str) -> str:
    """Code in a cell of a table, where Markdown takes no bar inside for the cell's end."""
    return f"`{text}`"
