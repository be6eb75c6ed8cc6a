"""Mutation operators, a module for each group of kinds. A module registers its operators when it is imported."""
