"""How kernels are computed: inputs are read, each example encoded once, pairs crossed by tiles."""
