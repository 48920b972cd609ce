module weir/services/registry

go 1.26.0

require weir/gen v0.0.0

require weir/internal v0.0.0

require (
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace weir/gen => ../../gen

replace weir/internal => ../../internal
