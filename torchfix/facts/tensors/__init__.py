"""Tensors: how they are made, where they live and where they are moved."""
