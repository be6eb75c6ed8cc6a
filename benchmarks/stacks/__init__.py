"""Packages that people train with: clean programs, and silent errors brought back into the packages."""
