"""bcs_lab: judge images reconstructed from brain signals with the BCI-Coherence Score (BCS).

Importing the package loads nothing heavy; see ``bcs --help`` for the tasks.
"""

__version__ = "0.1.0"
