"""Words of captions as the COCO evaluation counts them: Penn Treebank tokens without punctuation."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

# What the COCO evaluation drops; brackets come out of the tokenizer in lower case, so they stay.
DROPPED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_SPLIT_WORDS = {
    word.replace(" ", ""): word
    for word in ("can not", "gon na", "wan na", "got ta", "gim me", "lem me", "'t is", "'t was")
}
_ABBREVIATIONS = (
    *(
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "jr",
        "sr",
        "vs",
        "etc",
        "inc",
        "co",
        "ltd",
        "corp",
        "no",
        "ave",
    ),
    *("blvd", "rd", "mt", "ft", "gen", "col", "sgt", "capt", "lt", "gov", "sen", "rep", "rev", "jan", "feb"),
    *("mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
)
_TOKEN = re.compile(
    r"""
    </?[a-z][a-z0-9]*\s*/?>                      # a tag
    | (?:https?://|www\.)\S+ | [\w.+-]+@[\w-]+(?:\.[\w-]+)+ | @\w+   # an address, a name
    | (?:[a-z]\.){2,}(?:[a-z]\b)? | \b[a-z]\.(?=\s+[a-z])    # u.s.a., an initial
    | \b(?:ABBREVIATIONS)\.                      # mr.
    | \d+(?:[.,:/]\d+)+(?:-\w+)*                 # 1,000 and 5:30 and 1/2 and 3.5-inch
    | n't\b | '(?:s|m|d|re|ve|ll)\b | '\d0s\b    # clitics, decades
    | '(?:t(?:is|was)\b | n'(?!\w))              # 'tis, 'n'
    | \w+?(?=n't\b)                              # do + n't
    | \w+(?:'(?!(?:s|m|d|re|ve|ll|t)\b)\w+)*(?:[-/&.]\w+(?:'(?!(?:s|m|d|re|ve|ll|t)\b)\w+)*)*
    | \.{2,} | [!?]{2,} | -{2,}                  # runs of signs are one token
    | \S
    """.replace("ABBREVIATIONS", "|".join(_ABBREVIATIONS)),
    re.VERBOSE,
)


def python_words(captions: Sequence[str]) -> list[list[str]]:
    """Words by regular expressions that follow the Penn Treebank rules; needs nothing but Python."""
    return [_words(caption) for caption in captions]


def _words(caption: str) -> list[str]:
    text = caption.lower().replace("\u2019", "'").replace("\u2018", "'")
    words: list[str] = []
    for token in _TOKEN.findall(text):
        words += _SPLIT_WORDS.get(token, _BRACKETS.get(token, token)).split()
    return [word for word in words if word not in DROPPED and word not in ('"', "“", "”", "–", "—", "…")]


def java_jar() -> Path | None:
    """The tokenizer of the COCO evaluation, if Java and the package pycocoevalcap are installed."""
    package = importlib.util.find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations or shutil.which("java") is None:
        return None
    jars = Path(package.submodule_search_locations[0], "tokenizer").glob("stanford-corenlp-*.jar")
    return next(jars, None)


def java_words(captions: Sequence[str]) -> list[list[str]]:
    """Words by the Stanford PTBTokenizer, as pycocoevalcap calls it.

    Raises:
        ValueError: If Java or the jar are missing, or the tokenizer fails.
    """
    jar = java_jar()
    if jar is None:
        raise ValueError(
            "The tokenizer 'java' needs Java on the path and the package pycocoevalcap, which brings its "
            "jar. Install both (pip install pycocoevalcap), or choose the tokenizer 'python'."
        )
    if not captions:
        return []
    tokenizer = "edu.stanford.nlp.process.PTBTokenizer"
    command = ["java", "-cp", str(jar), tokenizer, "-preserveLines", "-lowerCase"]
    lines = "\n".join(" ".join(caption.split()) for caption in captions)
    done = subprocess.run(command, input=lines, capture_output=True, encoding="utf-8")
    words = done.stdout.split("\n")[: len(captions)]
    if done.returncode or len(words) != len(captions):
        raise ValueError(f"The Java tokenizer failed on {len(captions)} captions:\n{done.stderr[-2000:]}")
    return [[word for word in line.split() if word not in DROPPED] for line in words]


def words_of(captions: Sequence[str], tokenizer: str) -> list[list[str]]:
    """Words of each caption by the tokenizer "python" or "java"."""
    return {"python": python_words, "java": java_words}[tokenizer](captions)


def chosen_tokenizer(name: str) -> str:
    """The tokenizer that a name stands for: "auto" is "java" where it is installed, else "python".

    Raises:
        ValueError: If the name is unknown, or it is "java" and something is missing.
    """
    if name not in ("auto", "python", "java"):
        raise ValueError(f"Unknown tokenizer {name!r}; choose auto, python or java.")
    if name == "java":
        java_words([])
    return ("java" if java_jar() else "python") if name == "auto" else name
