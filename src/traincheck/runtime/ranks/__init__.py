"""The comparison of ranks while they train: each rank publishes its windows, and rank 0 compares them."""
