"""Where a model's files are: in a local folder, shipped with TIGER, or in the hub's cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

SHIPPED = Path(__file__).parent.parent / "pairs"
CONFIG = "config.json"
TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
FILES = (*TEXT_FILES, "*.safetensors")
# Of each line one file must be there.
PROCESSOR_FILES = (
    ("processor_config.json", "preprocessor_config.json"),
    ("tokenizer.json", "tokenizer.model", "vocab.json"),
    ("tokenizer_config.json",),
)


def resolve(name_or_path: str, files: Sequence[str] = FILES) -> Path:
    """Folder of a model; a hub repository is fetched into the hub's cache if it is not there.

    Args:
        name_or_path: Local folder, shipped name such as "tiny/verifier", or hub id, which may be pinned to a
            branch, tag or commit: "owner/model@revision".
        files: Patterns of the files to fetch from the hub.

    Raises:
        FileNotFoundError: If there is no such folder or repository, or the hub cannot be reached and the
            cache lacks the model.
    """
    for folder in (Path(name_or_path), SHIPPED / name_or_path):
        if folder.is_dir():
            return folder
    repository, _, revision = name_or_path.partition("@")
    if repository.count("/") > 1 or repository.startswith((".", "/", "tiny/")):
        raise FileNotFoundError(
            f"There is no folder {name_or_path!r}. Give a local folder, a hub id or a shipped model."
        )
    try:
        fetched = snapshot_download(
            repository, revision=revision or None, allow_patterns=list(files), ignore_patterns=["*/*"]
        )
    except LocalEntryNotFoundError as error:
        reason = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "there is no connection"
        raise FileNotFoundError(
            f"The hub's cache {constants.HF_HUB_CACHE} lacks {name_or_path} ({', '.join(files)}), and it "
            f"cannot be fetched, as {reason}. Run `{download_command(repository, revision)}` where the hub "
            f"can be reached, or give a local folder. The hub's client says: {error}"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"There is neither a folder nor a hub repository {name_or_path!r}. Correct the name or the "
            "revision; if the repository is private or gated, log in with `hf auth login`."
        ) from error
    return Path(fetched)


def download_command(repository: str, revision: str = "") -> str:
    """The shell command that fetches a hub repository."""
    return f"hf download {repository}" + (f" --revision {revision}" if revision else "")


def model_files(folder: Path) -> list[Path]:
    """The files of a folder that a model is read from."""
    return sorted({path for pattern in FILES for path in folder.glob(pattern)})


def open_to_readers(folder: Path, beside: str) -> None:
    """Gives weights the permissions of a file beside them, as safetensors shuts out all but their owner.

    Args:
        folder: A folder that was just written.
        beside: Name of a file in it, which was made with the permissions that the user wants for new files.
    """
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / beside, file)


def commit_of(folder: Path) -> str | None:
    """Commit of a folder in the hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" else None


def check_weights(folder: Path) -> None:
    """Checks that a model's weights are there as safetensors.

    Raises:
        FileNotFoundError: Naming what is missing.
    """
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
    missing = sorted(name for name in names or {"model.safetensors"} if not (folder / name).exists())
    if not missing:
        return
    pickled = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickled:
        raise FileNotFoundError(
            f"{folder} lacks {missing[0]} and holds {pickled[0]}. Only safetensors are read, because pickled "
            "weights can run code. Convert them where you trust their source: load a model with transformers "
            "and save_pretrained it, a head with `torch.load(file, weights_only=True)` and write it with "
            "safetensors' `save_file`. Or take a revision that has safetensors."
        )
    raise FileNotFoundError(_lack(folder, missing))


def check_processor(folder: Path) -> None:
    """Checks that the files of tokenizer and image processor are there.

    Raises:
        FileNotFoundError: Naming what is missing.
    """
    present = {path.name for path in folder.iterdir()}
    missing = [" or ".join(names) for names in PROCESSOR_FILES if not present.intersection(names)]
    if missing:
        raise FileNotFoundError(_lack(folder, missing))


def _lack(folder: Path, missing: Sequence[str]) -> str:
    """What to say of missing files."""
    advice = "Copy them from where the model comes from, or write the folder anew with save_pretrained."
    if commit_of(folder):
        repository = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        advice = f"Fetch them with `{download_command(repository, folder.name)}`."
    return f"{folder} lacks {', '.join(missing)}. {advice}"
