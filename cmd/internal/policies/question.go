package policies

import (
	"fmt"

	"buf.build/go/protovalidate"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/strictjson"
)

// CheckQuestion refuses a dry run that the gate would refuse, so that one decided by files
// is answered as the gate would answer it.
func CheckQuestion(check *gatev1.DryRun) error {
	if check.InputJson != nil {
		if _, err := strictjson.Canonical(check.GetInputJson()); err != nil {
			return fmt.Errorf("--input: %w", err)
		}
	}
	return protovalidate.Validate(check)
}
