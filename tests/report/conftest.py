"""Fixtures of the report's tests."""

from browser import browser

__all__ = ["browser"]
