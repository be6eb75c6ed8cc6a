"""The relation APIOutput: facts about the result of a call."""
