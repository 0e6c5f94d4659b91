"""Long conversations are cut at watermarks, so that they fit, keep what answers need, and keep their cached beginning."""
