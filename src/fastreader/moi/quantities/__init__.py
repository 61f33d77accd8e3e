"""The quantities of MoI: observations, position bias, utilities and the noise of scores."""
