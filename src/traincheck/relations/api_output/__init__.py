"""APIOutput: facts about the result of a call."""
