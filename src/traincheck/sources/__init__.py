"""Sources: observe a training process. The only stage that imports torch; it knows demands and events only."""
