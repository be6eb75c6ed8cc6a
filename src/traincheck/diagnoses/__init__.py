"""The catalogue of diagnoses: what a violated rule means, and what to check first.

One diagnosis is one file in a topic folder, see Note [Catalogue] in catalogue.py.
"""
