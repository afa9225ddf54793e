"""TIGER: exact speculative decoding for vision-language models with a routed drafter.

A small drafter looks at the few visual tokens that a router picks for the next block; the large frozen
verifier sees every visual token and decides. The output is the verifier's own.

Everything outside `tiger.training` and `tiger.cli` is plain torch and transformers and imports no Lightning.
"""

__version__ = "0.1.0"
