"""Draft heads: small modules that read what the verifier made of the text."""
