"""Training of small models and of probes."""
