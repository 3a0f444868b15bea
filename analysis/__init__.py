"""Analyses of stored transformer activations, after two papers and beyond them."""
