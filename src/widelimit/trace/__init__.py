"""From ordinary JAX code to its infinite-width law."""
