module weir/services/gate

go 1.26.0

require weir/gen v0.0.0

require weir/internal v0.0.0

replace weir/gen => ../../gen

replace weir/internal => ../../internal
