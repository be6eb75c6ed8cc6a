"""Metrics: how a run fares as numbers, for Prometheus and OpenTelemetry. Nothing is served or sent unless asked for."""
