"""Apex: where a program uses it, and what of torch takes its place."""
