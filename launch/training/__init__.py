"""Training: steps fed, run, judged, recorded, and gone on with."""
