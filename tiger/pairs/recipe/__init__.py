"""The recipe that trains the tiny pair: vision towers by dense supervision, then the language models."""
