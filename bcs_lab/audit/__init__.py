"""The audit of conventional metrics: where they are harsh, where they are blind (Sections 3 and 4.4 of the paper)."""
