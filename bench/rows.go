package main

import (
	"fmt"
	"slices"
	"strings"
)

// row is one line of the table.
type row struct {
	name string
	// ratioTo names the row that this one is compared with, if any, at the same
	// number of callers and on the same servers.
	ratioTo string
	// aim is the least ratio to reach with aimCallers callers, 0 for none.
	aim float64
	// open prepares, once for each mesh, what the row works on.
	open func(*mesh) (workload, error)
}

// aimCallers is the load that the aims are set for.
const aimCallers = 64

// What rows are compared with.
const (
	rawPublish = "raw_publish"
	emptyRPC   = "empty_rpc"
	append10   = "aggregate_append_10"
)

// table is all rows. Those that are compared stand together.
var table = []row{
	{name: rawPublish, open: openRawPublish},
	{name: "aggregate_append", ratioTo: rawPublish, aim: 0.6, open: openAppend},
	{name: "aggregate_create", ratioTo: rawPublish, open: openCreate},
	{name: "enqueue", ratioTo: rawPublish, aim: 0.4, open: openEnqueue},
	{name: "claim_done", ratioTo: rawPublish, aim: 0.4, open: openClaimDone},
	{name: "append_message", ratioTo: rawPublish, aim: 0.4, open: openAppendMessage},
	{name: emptyRPC, open: openEmptyRPC},
	{name: "health_rpc", ratioTo: emptyRPC, open: openHealthRPC},
	{name: "read", ratioTo: emptyRPC, aim: 0.5, open: openRead},
	{name: "check", ratioTo: emptyRPC, aim: 0.7, open: openCheck},
	{name: append10, open: openAppendOne(10)},
	// Within 1.5 times the cost.
	{name: "aggregate_append_10k", ratioTo: append10, aim: 1 / 1.5, open: openAppendOne(10_000)},
}

// chosen gives the named rows, all if none is named, with those that they are
// compared with, in the table's order.
func chosen(names []string) ([]row, error) {
	if len(names) == 0 {
		return table, nil
	}
	want := slices.Clone(names)
	for _, name := range names {
		i := slices.IndexFunc(table, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--only: there is no row %q; there are %s", name, strings.Join(rowNames(table), ", "))
		}
		want = append(want, table[i].ratioTo)
	}
	return slices.DeleteFunc(slices.Clone(table), func(r row) bool { return !slices.Contains(want, r.name) }), nil
}

func rowNames(rows []row) []string {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.name
	}
	return names
}
