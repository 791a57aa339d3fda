"""Half precision: what autocast does to a training loop."""
