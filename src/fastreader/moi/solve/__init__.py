"""The mathematics of MoI without a reader."""
