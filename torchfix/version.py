"""The version of this package, in one place and free of imports."""

VERSION = "0.1.0"
