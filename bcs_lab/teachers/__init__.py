"""The questions teachers answer, what they are told, and what their replies say."""

from bcs_lab.teachers.parse import ParsedResponse, parse_response

__all__ = ["ParsedResponse", "parse_response"]
