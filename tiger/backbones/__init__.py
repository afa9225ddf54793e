"""Families of vision-language models behind one interface: visual bank, cache, language model calls."""
