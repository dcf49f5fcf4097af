"""Speed of weight-normalized layers relative to the plain layer and to torch's weight norm, interleaved in one run."""
