"""What comparing ranks costs: measured on this machine, and simulated for jobs that it could not hold."""
