"""widelimit: what attention networks become when they are infinitely wide."""
