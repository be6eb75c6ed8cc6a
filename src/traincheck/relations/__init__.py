"""The relations: each one defines the occasions of a kind of rule, and which properties hold on them."""
