"""Ranks: processes of one job send each other what they hold, and rank 0 compares it while they train."""
