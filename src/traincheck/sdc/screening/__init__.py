"""Screening: run the same training work repeatedly on each device and compare fingerprints."""
