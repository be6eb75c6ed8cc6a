"""Turns the calls and changes that sources observe into events, and cuts the events into windows."""
