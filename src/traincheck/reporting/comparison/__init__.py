"""The page and the Markdown text of a comparison of two runs."""
