package registry

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/goccy/go-yaml"

	"weir/internal/schema"
)

//go:embed catalogue/*.yaml
var ownCatalogue embed.FS

// catalogue is the curated operations: validated whole, then frozen.
type catalogue struct {
	operations map[string]*Operation
	names      []string
	// Digest is over the digests of all operations.
	digest string
}

// definition is an operation as it is written in a catalogue file.
type definition struct {
	Name        string       `yaml:"name"`
	Description string       `yaml:"description"`
	Kind        kind         `yaml:"kind"`
	Effect      effect       `yaml:"effect"`
	Visibility  visibility   `yaml:"visibility"`
	Resource    *resource    `yaml:"resource"`
	Input       any          `yaml:"input"`
	Output      any          `yaml:"output"`
	GRPC        *grpcBinding `yaml:"grpc"`
}

// loadCatalogue reads every file of a folder and reports all of their problems.
func loadCatalogue(files fs.FS) (*catalogue, error) {
	c := &catalogue{operations: make(map[string]*Operation)}
	paths, err := fs.Glob(files, "*/*.yaml")
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return nil, err
		}
		var file struct {
			Operations []definition `yaml:"operations"`
		}
		if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path, err))
			continue
		}
		for i, d := range file.Operations {
			if err := c.add(d); err != nil {
				problems = append(problems, fmt.Errorf("%s: operations[%d] %s: %w", path, i, d.Name, err))
			}
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("catalogue: %w", errors.Join(problems...))
	}
	h := sha256.New()
	slices.Sort(c.names)
	for _, name := range c.names {
		_, _ = h.Write([]byte(c.operations[name].Digest))
	}
	c.digest = hex.EncodeToString(h.Sum(nil))
	return c, nil
}

func (c *catalogue) add(d definition) error {
	o := &Operation{
		Name: d.Name, Description: d.Description, Kind: d.Kind, Effect: d.Effect, Visibility: d.Visibility, Resource: d.Resource,
	}
	if err := o.check(); err != nil {
		return err
	}
	if _, taken := c.operations[o.Name]; taken {
		return errors.New("name: is defined twice")
	}
	var err error
	if o.Input, err = schemaOf(d.Input); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	if o.Output, err = schemaOf(d.Output); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	if d.GRPC == nil {
		return errors.New("grpc: an operation needs a binding")
	}
	if err := d.GRPC.resolve(); err != nil {
		return fmt.Errorf("grpc: %w", err)
	}
	o.Binding = d.GRPC
	if o.Digest, err = o.digest(); err != nil {
		return err
	}
	c.operations[o.Name] = o
	c.names = append(c.names, o.Name)
	return nil
}

func schemaOf(definition any) (*schema.Schema, error) {
	if definition == nil {
		return nil, errors.New("a schema is needed; `true` takes anything")
	}
	text, err := json.Marshal(definition)
	if err != nil {
		return nil, err
	}
	return schema.Compile(text)
}
