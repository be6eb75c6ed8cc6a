"""A generator of clean training programs: the corpus that packs are learned from and that mutants are made of."""
