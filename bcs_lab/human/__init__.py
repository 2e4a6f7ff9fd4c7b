"""People: which pairs to show them, the form they rate on, and how reliable and how close to BCS their ratings are."""
