"""The rewrites: one module each, found by walking this package, installed as ``torchfix.transforms``."""
