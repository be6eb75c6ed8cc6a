"""What observation costs: step time of full collection and of live checking against the plain program."""
