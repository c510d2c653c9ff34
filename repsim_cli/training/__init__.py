"""Training of small models of our own."""
