"""Training and evaluation: networks, optimizers, loops, gradients and memory."""
