"""The rendered demo corpus: scenes whose true answers are known (``load_corpus("demo")``)."""
