"""The page of a study of silent data corruption."""
