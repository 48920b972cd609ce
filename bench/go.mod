module weir/bench

go 1.26

require weir/gen v0.0.0
require weir/internal v0.0.0
require weir/services/gate v0.0.0
require weir/services/registry v0.0.0
require weir/services/conversation v0.0.0
require weir/services/inbox v0.0.0

replace weir/gen => ../gen
replace weir/internal => ../internal
replace weir/services/gate => ../services/gate
replace weir/services/registry => ../services/registry
replace weir/services/conversation => ../services/conversation
replace weir/services/inbox => ../services/inbox
