"""The nouns that all stages speak: frozen data, standard library only."""
