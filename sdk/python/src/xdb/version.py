"""The version of the package. pyproject.toml reads it here."""

VERSION = "0.4.0"
