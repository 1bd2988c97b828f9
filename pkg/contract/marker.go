package contract

import "fmt"

// FindMarker returns the marker that names an output, and the key of that marker. The marker is the commit marker or,
// for an approved output, the marker in quarantine. readObject returns the content of an object. isAbsent reports
// whether an error of readObject means that the object does not exist. For the output of one partition of a batch,
// FindMarker returns the partition's part of the marker: see [CommitMarker.For].
//
// If neither marker names the output, FindMarker returns the result of reading the commit marker: an error of
// readObject, an error of [DecodeCommitMarker], or a marker that names another output.
func FindMarker(uri string, readObject func(key string) ([]byte, error), isAbsent func(error) bool) (*CommitMarker, string, error) {
	key := CommitMarkerKeyOf(uri)
	m, err := readMarker(key, readObject)
	if err != nil && !isAbsent(err) {
		return m, key, err
	}
	if err == nil {
		if named := m.For(uri); named != nil {
			return named, key, nil
		}
	}
	other := QuarantineMarkerKeyOf(uri)
	switch approved, otherErr := readMarker(other, readObject); {
	case otherErr == nil && approved.For(uri) != nil:
		return approved.For(uri), other, nil
	case otherErr != nil && !isAbsent(otherErr):
		return nil, other, otherErr
	}
	return m, key, err
}

func readMarker(key string, readObject func(key string) ([]byte, error)) (*CommitMarker, error) {
	data, err := readObject(key)
	if err != nil {
		return nil, err
	}
	m, err := DecodeCommitMarker(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return m, nil
}
