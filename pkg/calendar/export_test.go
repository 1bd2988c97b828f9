package calendar

// PackedVersion returns the version that the zone data names.
func PackedVersion() string { return unpacked().version }
