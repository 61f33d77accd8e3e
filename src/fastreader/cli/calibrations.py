"""Messages about calibrations that several commands print."""

UNCALIBRATED = (
    "no calibration for this reader, template and number of passages: utilities are query likelihoods, and passages "
    "keep the retriever's order; fastreader calibrate measures one from 20 questions or more"
)
