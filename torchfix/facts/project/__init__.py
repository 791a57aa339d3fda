"""The user's project: its files, its declarations, its programs and what they do to the outside."""
