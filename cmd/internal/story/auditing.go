package story

import (
	"context"
	"strings"

	gatev1 "weir/gen/gate/v1"
	"weir/services/gate/audit"
)

func (s *story) keepCheckpoint(ctx context.Context) error {
	kept, err := s.audits.GetCheckpoint(ctx, &gatev1.GetCheckpointRequest{})
	if err != nil {
		return err
	}
	s.kept, s.verifier = kept.GetCheckpoint(), kept.GetVerifierKey()
	checkpoint, err := audit.OpenCheckpoint(s.kept, s.verifier)
	s.check(err == nil && checkpoint.Size > 0, "Ida, an auditor, keeps a signed checkpoint of %d records%s", checkpoint.Size, because(err))
	return nil
}

func (s *story) auditAll(ctx context.Context) error {
	report, err := audit.Audit(ctx, s.audits, s.kept, s.verifier)
	s.check(err == nil, "nothing before her checkpoint was changed, moved or removed: %d records then, %d now, all counted%s",
		report.Kept.Size, report.Now.Size, because(err))
	forged := strings.Replace(s.kept, "\n"+sizeOf(s.kept)+"\n", "\n1\n", 1)
	_, err = audit.Audit(ctx, s.audits, forged, s.verifier)
	s.check(forged != s.kept && err != nil, "a checkpoint that somebody altered proves nothing%s", because(err))
	return nil
}

// sizeOf is the second line of a checkpoint.
func sizeOf(checkpoint string) string {
	lines := strings.SplitN(checkpoint, "\n", 3)
	if len(lines) < 2 {
		return ""
	}
	return lines[1]
}
