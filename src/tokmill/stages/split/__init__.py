"""Training and held-out documents."""
