"""Export the status of a run as metrics to Prometheus and OpenTelemetry, if `--metrics` requests it."""
