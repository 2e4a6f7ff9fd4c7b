"""The rendered demo corpus: scenes whose true answers are known."""
