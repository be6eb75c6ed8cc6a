"""Distributed: collectives, messages between ranks, and replicas."""
