"""The text that each token adds, for streams and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"
CONTEXT = 12


def piece(tokenizer: Any, context: Sequence[int], token: int) -> str:
    """Text that a token adds behind its context; empty while a character is still incomplete.

    Args:
        tokenizer: A transformers tokenizer.
        context: Tokens before it.
        token: The token.
    """
    recent = list(context[-CONTEXT:])
    before = _decode(tokenizer, recent)
    return _decode(tokenizer, [*recent, token])[len(before) :]


def pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Text that each token of a sequence adds."""
    return [piece(tokenizer, tokens[:index], token) for index, token in enumerate(tokens)]


def _decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    text: str = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text.rstrip(UNFINISHED)
