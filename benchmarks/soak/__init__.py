"""What a long run costs in memory, on disk and in time, at its end as at its beginning."""
