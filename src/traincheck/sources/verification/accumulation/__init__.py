"""The experiment that compares how elements of micro-batches weigh."""
