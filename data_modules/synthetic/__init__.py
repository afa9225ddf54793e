"""Synthetic images with exact questions and answers."""
