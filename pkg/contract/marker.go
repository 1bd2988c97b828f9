package contract

import "fmt"

// FindMarker returns the marker that names an output, and the key of that marker. The marker is the commit marker or,
// for an approved output, the marker in quarantine. The parameter read returns the content of an object. The parameter
// absent reports whether an error of read means that the object does not exist. For the output of one partition of a
// batch, FindMarker returns the partition's part of the marker: see [CommitMarker.For].
//
// If neither marker names the output, FindMarker returns the result of reading the commit marker: an error of read, an
// error of [DecodeCommitMarker], or a marker that names another output.
func FindMarker(uri string, read func(key string) ([]byte, error), absent func(error) bool) (*CommitMarker, string, error) {
	key := CommitMarkerKeyOf(uri)
	m, err := readMarker(key, read)
	if err != nil && !absent(err) {
		return m, key, err
	}
	if err == nil {
		if named := m.For(uri); named != nil {
			return named, key, nil
		}
	}
	other := QuarantineMarkerKeyOf(uri)
	switch approved, otherErr := readMarker(other, read); {
	case otherErr == nil && approved.For(uri) != nil:
		return approved.For(uri), other, nil
	case otherErr != nil && !absent(otherErr):
		return nil, other, otherErr
	}
	return m, key, err
}

func readMarker(key string, read func(key string) ([]byte, error)) (*CommitMarker, error) {
	data, err := read(key)
	if err != nil {
		return nil, err
	}
	m, err := DecodeCommitMarker(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return m, nil
}
