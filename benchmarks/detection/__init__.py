"""The silent-error benchmark: 50 real errors, reproduced one by one, and what is detected of them."""
