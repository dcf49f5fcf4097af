"""Speed of weight-normalized layers against the plain layer and torch's own weight norm, interleaved in one run."""
