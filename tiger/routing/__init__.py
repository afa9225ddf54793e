"""Routers and selectors: which visual tokens the drafter sees while it drafts the next block."""
