"""Training mixtures, the synthetic world and evaluation sets as Lightning data modules."""
