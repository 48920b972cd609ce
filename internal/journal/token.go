package journal

import (
	"encoding/base64"
	"strconv"
	"strings"
)

// SealToken makes the opaque token of a place in a sequence: whose sequence it
// is, and where to go on. It is no secret; what it opens is checked each time.
func SealToken(whose string, sequence uint64) string {
	return base64.RawURLEncoding.EncodeToString([]byte(whose + " " + strconv.FormatUint(sequence, 36)))
}

// OpenToken reads a token of somebody's, as it was sealed.
func OpenToken(whose, token string) (sequence uint64, ok bool) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, false
	}
	number, ok := strings.CutPrefix(string(text), whose+" ")
	if !ok {
		return 0, false
	}
	sequence, err = strconv.ParseUint(number, 36, 64)
	return sequence, err == nil && SealToken(whose, sequence) == token
}
