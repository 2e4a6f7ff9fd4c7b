"""Names of the groups that tables by method have."""

from __future__ import annotations

#: All pairs together.
OVERALL = "overall"


def group_of(method: str) -> str:
    """The group of a method: its own name, in quotes where that is the name of all pairs together.

    >>> group_of("overall"), group_of("m1")
    ("'overall'", 'm1')
    """
    return f"'{method}'" if method == OVERALL else method
