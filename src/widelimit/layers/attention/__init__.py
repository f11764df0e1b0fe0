"""Multi-head attention: scores, positions, heads; the finite layer and its limits side by side."""
