"""What commands say of calibrations."""

UNCALIBRATED = (
    "no calibration for this reader, template and number of passages: ranked by random prefixes; "
    "fastreader calibrate --keep measures one"
)
