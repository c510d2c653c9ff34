"""Reading activations: hook points, capture during one forward pass, and the stream of rows they give."""
