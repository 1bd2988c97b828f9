package project

// Header returns the YAML of a SQL file's header.
func Header(text []byte) []byte {
	header, _ := splitHeader(text)
	return header
}
