"""The `report` verb: static pages of benchmarks, studies and training runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from jsonargparse import ArgumentParser

from tiger.report.front_page import write_front
from tiger.report.key_figures import FILE, key_figures, read_figures, write_figures
from tiger.report.page import file_name
from tiger.report.source_pages import write_benchmark, write_study, write_training
from tiger.report.sources import Benchmark, Run, Study, find_sources

PROGRAM = "python -m tiger report"
SUMMARY = "Writes static pages of benchmarks, studies and training runs, with what has changed."


def report(options: list[str]) -> Path:
    """Parses the options of the verb and writes the report.

    Args:
        options: Arguments after the verb.

    Returns:
        The front page.
    """
    parser = ArgumentParser(prog=PROGRAM, description=SUMMARY)
    parser.add_argument(
        "folders", nargs="+", type=str, help="Folders of results, or folders of such folders."
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("report"), help="Folder of the pages.")
    parser.add_function_arguments(write_report, as_group=False, skip={"folders", "output"})
    values = parser.parse_args(options).as_dict()
    page = write_report([Path(folder) for folder in values.pop("folders")], **values)
    print(f"Report written to {page}")
    return page


def write_report(
    folders: Sequence[Path],
    output: Path = Path("report"),
    previous: Path | None = None,
    traces: int = 0,
    verifier: str | None = None,
    decoders: dict[str, str | None] | None = None,
) -> Path:
    """Writes pages that need no server and no network: a front page, one of each source, rounds to look at.

    Args:
        folders: Folders of benchmarks, studies and training runs, told apart by what they hold; folders that
            hold some are searched.
        output: Folder of the pages.
        previous: Folder of the report to compare with; by default the one that is being replaced.
        traces: Decode so many held-out prompts of each benchmark's sets again, and show every round.
        verifier: Verifier of the traces; by default the one that the benchmark noted.
        decoders: Drafters of the traces by name; by default those of the benchmark.

    Returns:
        The front page.

    Raises:
        FileNotFoundError: If a folder is missing, nothing readable is in it, or there is no report before.
        ValueError: If a file has an unknown schema, or the drafters of traces are not known.
    """
    if traces < 0:
        raise ValueError(f"traces is {traces}; show one prompt or more of each set, or 0 for none.")
    before = read_figures(previous or output)
    if previous is not None and before is None:
        raise FileNotFoundError(f"{previous} has no {FILE}; give the folder of an earlier report.")
    sources = find_sources(folders)
    rounds: dict[str, str] = {}
    for name, source in sources.items():
        path = output / file_name(name)
        if isinstance(source, Benchmark):
            if traces:
                rounds[name] = f"{path.stem}-rounds.html"
                _write_rounds(source, traces, output / rounds[name], verifier, decoders)
            write_benchmark(path, name, source, rounds.get(name))
        elif isinstance(source, Study):
            write_study(path, source)
    if runs := {name: source for name, source in sources.items() if isinstance(source, Run)}:
        write_training(output / "training.html", runs)
    figures, created = key_figures(sources), datetime.now(timezone.utc)
    write_front(output / "index.html", f"{created:%Y-%m-%d %H:%M} UTC", sources, rounds, figures, before)
    write_figures(output, created.isoformat(timespec="seconds"), figures)
    return output / "index.html"


def _write_rounds(
    source: Benchmark,
    count: int,
    page: Path,
    verifier: str | None,
    decoders: dict[str, str | None] | None,
) -> None:
    """Decodes prompts of a benchmark again and writes the page of their rounds."""
    from tiger.evaluation.tracing import retrace  # loads models, which other pages need not

    arguments = dict(source.settings.get("arguments", {}))
    arguments |= {"verifier": verifier} if verifier else {}
    arguments |= {"decoders": decoders} if decoders else {}
    if not {"verifier", "decoders"} <= arguments.keys():
        raise ValueError(
            f"{source.folder} does not say which drafters it compared, as it has no settings.json; give "
            "--verifier and --decoders, or run the benchmark again, or leave --traces out."
        )
    retrace(arguments, count, page, title=f"Rounds of {source.folder.name}", home="index.html")
