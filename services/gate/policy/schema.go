package policy

import (
	_ "embed"
	"slices"
)

//go:embed policy.schema.json
var fileSchema []byte

// Schema is the JSON Schema of a File's YAML form, for editors. It takes what ParseFile
// takes but for what no schema can say: that ids are unique, that a time exists, that a
// length of time is within its bounds.
func Schema() []byte { return slices.Clone(fileSchema) }
