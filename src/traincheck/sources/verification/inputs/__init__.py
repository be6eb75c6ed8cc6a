"""The experiments that change the inputs of a model: samples, later tokens and padding."""
