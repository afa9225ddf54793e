"""Acceptance and task metrics, computed from round records and generated text."""
