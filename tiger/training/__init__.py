"""The two training stages as Lightning modules: KD warm-start and acceptance alignment."""
