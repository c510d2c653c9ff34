"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices."""
