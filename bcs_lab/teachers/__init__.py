"""The questions teachers answer."""
