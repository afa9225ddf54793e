"""The exact decoding loops: speculative and autoregressive, with acceptance rules and round records."""
