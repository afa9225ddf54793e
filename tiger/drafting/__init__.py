"""Drafters: the routed one of TIGER and every baseline, all proposing token trees."""
