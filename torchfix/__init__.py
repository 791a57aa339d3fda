"""torchfix reads PyTorch training code and rewrites slow patterns into fast ones."""

from torchfix.version import VERSION as __version__

__all__ = ["__version__"]
