"""The relation Consistent: two variables, or one variable at two times, have the same value."""
