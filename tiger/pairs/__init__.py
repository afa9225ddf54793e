"""Drafter and verifier pairs that ship with the package, and the recipe that trained them."""
