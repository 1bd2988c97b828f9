package plan

// Suggest returns the known word nearest to the given word, for "did you mean", or "" if none is near.
func Suggest(word string, known []string) string {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, k := range known {
		if d := distance(word, k, bestDistance); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// maxSuggest is the maximum length of words that are compared, in bytes.
const maxSuggest = 128

// distance returns the edit distance of a and b in bytes: insertions, deletions, replacements and swaps of neighbours.
// Only distances below the parameter "limit" are exact: for a longer distance, it returns at least "limit".
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit || len(a) > maxSuggest || len(b) > maxSuggest {
		return limit
	}
	var rows [3][maxSuggest + 1]int
	before, above, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least >= limit {
			return limit
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
