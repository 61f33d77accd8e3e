"""Messages about calibrations that several commands print."""

UNCALIBRATED = (
    "no calibration for this reader, template and number of passages: ranked by random prefixes; "
    "fastreader calibrate --install measures one"
)
