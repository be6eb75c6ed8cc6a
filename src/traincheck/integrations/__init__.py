"""Integrations: a line in a program that a framework trains, in place of `traincheck run` before its command."""
