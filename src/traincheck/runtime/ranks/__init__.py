"""The comparison of ranks while they train: each rank publishes its windows, and one of them compares them."""
