"""Numbers that a loop reads from the device: what they are for, how often, and whether that can wait."""
