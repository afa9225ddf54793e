"""Memory and work of decoding and training from configurations alone: no weights, no GPU."""
